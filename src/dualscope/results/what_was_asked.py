"""What a person gave to compare(), checked before anything is computed: each mistake is one message."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError, suggest
from dualscope.tasks import Episode, Task
from dualscope.tasks.task import TEMPLATE

if TYPE_CHECKING:
    from dualscope.models import Model


OTHER_WORDS = {
    "learning_rate": "lr",
    "rate": "lr",
    "n_shots": "shots",
    "k": "shots",
    "num_shots": "shots",
    "seeds": "seed",
    "learner": "learners",
    "metric": "metrics",
    "intervention": "interventions",
    "examples": "demonstrations",
    "test": "queries",
}
"""What people type, and what it is called here."""


def whole(value: Any, name: str, least: int) -> int:
    """A whole number, also one of numpy's.

    >>> whole("8", "shots", 1)
    Traceback (most recent call last):
    dualscope.core.errors.InputError: shots: a whole number from 1 on is needed, found '8': write 8, without quotes
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is not None and number >= least:
        return number
    hint = ""
    if isinstance(value, str) and value.strip().isdecimal():
        hint = f": write {int(value)}, without quotes"
    elif isinstance(value, float) and value.is_integer():
        hint = f": write {int(value)}"
    elif name == "seed" and isinstance(value, Iterable) and not isinstance(value, str):
        hint = (
            ": one comparison is one episode; several seeds are a study's, as in "
            "run_study({'tasks': ..., 'seeds': [0, 1]}, 'runs/mine')"
        )
    raise InputError(f"{name}: a whole number from {least} on is needed, found {value!r}{hint}")


def rate(value: Any) -> float | None:
    """A learning rate, or None where it is to be chosen. numpy's numbers are Real too; True is, and is no rate."""
    if value is None:
        return None
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 < float(value) < math.inf:
        raise InputError(f"lr must be one number above 0 (or None, to have it chosen), found {value!r}")
    return float(value)


def check_keywords(given: Iterable[str], accepted: Iterable[str]) -> None:
    """Keywords that go on to `Episode.draw`; of any other one is said what was probably meant."""
    own = [name for name in inspect.signature(Episode.draw).parameters if name != "task"]
    known = [*accepted, *own]
    for name in given:
        if name not in own:
            meant = OTHER_WORDS.get(name)
            said = f"it is called {meant} here." if meant else suggest(name, known)
            raise InputError(f"compare() has no argument '{name}': {said}")


def as_model(given: Any, variant: str, device: str) -> Model:
    """A model, the name of one, or a module of transformers with its tokenizer."""
    from dualscope.models import Model

    if isinstance(given, str | Path):
        return Model.load(str(given), variant=variant, device=device, dtype="auto")
    if (variant, device) != ("trained", "auto"):
        raise InputError("variant and device are chosen when a model is loaded, and this one is: Model.load(...)")
    if isinstance(given, Model):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return Model.from_hf(*given)
    kind = type(given).__name__
    if hasattr(given, "get_output_embeddings"):
        raise InputError(
            f"model: a {kind} comes without its tokenizer; give both, as (module, tokenizer), or "
            "Model.from_hf(module, tokenizer)"
        )
    raise InputError(f"model: a name, a folder, a Model or a pair (module, tokenizer) is needed, found {kind}")


def learners_of(given: Any) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Name, control and options of every learner that was asked for: names, mappings, classes of learners."""
    from dualscope.learners import Learner

    alone = isinstance(given, str | Mapping | Learner | type)
    try:
        entries = [given] if alone else list(given)
    except TypeError:
        raise InputError(f"learners: names, or mappings with a name and options, are needed, found {given!r}") from None
    if not entries:
        raise InputError("learners: none is given; name at least one, as in ['gd', 'lcgd']")
    return [_learner(entry) for entry in entries]


def _learner(entry: Any) -> tuple[str, str | None, dict[str, Any]]:
    from dualscope.learners import LEARNERS, Learner

    if isinstance(entry, str):
        return entry, None, {}
    if isinstance(entry, Mapping):
        rest = dict(entry)
        if "learner" not in rest:
            raise InputError(f"learners: a mapping needs a name, {{'learner': 'gd', ...}}, found {rest!r}")
        return rest.pop("learner"), rest.pop("control", None), {**rest.pop("options", {}), **rest}
    kind = entry if isinstance(entry, type) else type(entry)
    if issubclass(kind, Learner):
        for name in LEARNERS:
            if LEARNERS[name] is kind:
                return name, None, {}
        raise InputError(
            f"learners: {kind.__name__} is not registered; put @LEARNERS.register('a-name') above the class, and give "
            "the name"
        )
    raise InputError(f"learners: a name or a mapping with a name and options is needed, found {entry!r}")


# One's own demonstrations, and the episode that they make.


Shown = tuple[str, str]
"""A text and its label."""


def own_episode(
    demonstrations: Sequence[Shown],
    queries: Sequence[Shown | str],
    labels: Sequence[str] | None = None,
    template: str | None = None,
    seed: int = 0,
) -> Episode:
    """Demonstrations and queries as they stand. A query without a label is given the first one, and nothing that is
    right or wrong should be said of it.

    >>> episode = own_episode([("a fine film", "good"), ("a dull plot", "bad")], ["a fine plot"])
    >>> episode.task.labels, episode.shots, episode.task.prompt(episode.queries[0])
    (('good', 'bad'), 2, 'Sentence: a fine plot Label:')
    """
    for shown in demonstrations:
        if isinstance(shown, str) or len(shown) != 2:
            raise InputError(f"a demonstration is a pair of text and label, found {shown!r}")
    if not demonstrations:
        raise InputError("give at least one demonstration, a pair of text and label")
    if not queries:
        raise InputError("give at least one query")
    words = list(labels or dict.fromkeys(label for _, label in demonstrations))
    form = TEMPLATE if template is None else template
    task = Task.from_examples(list(demonstrations), labels=words, template=form)
    asked = [(query, words[0]) if isinstance(query, str) else (query[0], query[1]) for query in queries]
    for text, _ in asked:
        if not text.strip():
            raise InputError("a query is empty; give a text to be labelled")
    return Episode.of(task.train, asked, task=task, seed=seed)
