"""Compare learners on one episode, in a notebook or a script.

The arguments are checked before anything is computed: each mistake is one message.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from dualscope.core.errors import InputError, suggest
from dualscope.core.response_products import plant_name
from dualscope.core.rows import MetricRow
from dualscope.core.spec import IN_CONTEXT, PLAIN, ZERO_SHOT, LearnerSpec, companions
from dualscope.findings.answer import metric_title, short
from dualscope.studies.resolve import recorded_rates
from dualscope.tasks import Episode, Lesson, Task, make_lesson
from dualscope.tasks.sources import rows_of
from dualscope.tasks.task import TEMPLATE

if TYPE_CHECKING:
    from dualscope.learners import Bench, Learned
    from dualscope.models import Model, Trace


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
"""Words that people type, and our name for each."""


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
    """One's own demonstrations and queries, unchanged. A query without a label is given the first one, so metrics that
    ask whether an answer is right must leave it out.

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


SHOWN = (
    *("accuracy", "sim_aou", "sim_am_delta", "jaccard"),
    *("learned_share", "response_answers", "response_aou", "response_influence"),
)
"""What is shown of a comparison, as far as it was measured."""
TABLE = ("learner", "metric", "reference", "value", "low", "high", "n")


class ComparedRow(MetricRow):
    """A metric's row, and whose it is: the learner by its label."""

    learner: str
    control: str | None
    role: str
    intervention: str | None


@dataclass(frozen=True, repr=False)
class Comparison:
    """What several learners made of the same episode, each compared with in-context learning.

    >>> from dualscope import compare
    >>> found = compare("embedded", "embedded-sst2", "gd", shots=4, queries=6)
    >>> found
    Comparison of in-context, gd on 6 queries of embedded-sst2, 4 shots
    >>> found.table("accuracy").column_names
    ['learner', 'metric', 'reference', 'value', 'low', 'high', 'n']
    >>> found.table("sim_oau")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: no such metric here: 'sim_oau': did you mean sim_aou...
    """

    lesson: Lesson  # the episode in the model's tokens
    learned: Mapping[str, Learned]  # by learner, zero-shot and in-context among them
    lr: float | None  # the rate that gradient learners had
    rows: tuple[ComparedRow, ...]  # every value: aggregates, and by layer, head and step

    @property
    def traces(self) -> dict[str, Trace]:
        """The traces by learner, zero-shot and in-context among them."""
        return {name: learned.trace for name, learned in self.learned.items()}

    def table(self, *metrics: str) -> pa.Table:
        """The aggregate rows (of these metrics, or all): ``table().to_pandas()`` in a notebook."""
        chosen = [row for row in self.rows if row["layer"] is None and row["head"] is None and row["step"] is None]
        for metric in metrics:
            self._check(metric, chosen)
        wanted = [row for row in chosen if not metrics or row["metric"] in metrics]
        plain: list[Mapping[str, Any]] = list(wanted)
        return pa.table({name: [row[name] for row in plain] for name in TABLE})

    def layers(self, metric: str) -> dict[str, np.ndarray]:
        """A metric layer by layer, [layers] a learner, layers counted from the input."""
        chosen = [row for row in self.rows if row["layer"] is not None and row["head"] is None and row["step"] is None]
        self._check(metric, chosen)
        found: dict[str, dict[int, float]] = {}
        for row in chosen:
            if row["metric"] == metric and row["layer"] is not None:
                found.setdefault(row["learner"], {})[row["layer"]] = row["value"]
        return {
            name: np.array([values.get(layer, math.nan) for layer in range(max(values) + 1)])
            for name, values in found.items()
        }

    @staticmethod
    def _check(metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
        known = {row["metric"] for row in rows}
        if metric not in known:
            raise InputError(f"no such metric here: '{metric}': {suggest(metric, known)}")

    def __repr__(self) -> str:
        episode = self.lesson.episode
        learners = ", ".join(name for name in self.learned if name != ZERO_SHOT.label)
        count = len(self.lesson.queries)
        asked = f"{count} quer{'y' if count == 1 else 'ies'}"
        return f"Comparison of {learners} on {asked} of {episode.task.name}, {self.lesson.shots_used} shots"

    @property
    def verdict(self) -> str:
        """One episode is one seed, and decides nothing: what it shows, and what would decide."""

        def told(metric: str, rows: Iterable[ComparedRow]) -> str:
            found = {row["learner"]: row["value"] for row in rows if row["metric"] == metric and row["layer"] is None}
            return ", ".join(f"{name} {short(value)}" for name, value in found.items() if math.isfinite(value))

        shown = told("sim_aou", (row for row in self.rows if row["learner"] != IN_CONTEXT.label))
        moved = (row for row in self.rows if row["role"] == "hypothesis" and row["reference"] == IN_CONTEXT.label)
        responses = told("response_answers", moved)
        return (
            f"Undecided: one episode is one seed. Likeness to in-context learning: {shown or 'not measured'}. "
            f"Response to changed labels: {responses or 'not measured (`interventions` does)'}. "
            "`dualscope run` measures both beside their controls, over several seeds."
        )

    def _shown(self) -> tuple[list[str], dict[tuple[str, str], float]]:
        """The metrics that are shown, as far as they were measured, and their values by learner and metric."""
        value = {
            (row["learner"], row["metric"]): row["value"]
            for row in self.rows
            if row["layer"] is None and row["reference"] in (None, IN_CONTEXT.label, ZERO_SHOT.label)
        }
        return [name for name in SHOWN if any(metric == name for _, metric in value)], value

    def plot(self, metric: str = "sim_aou") -> Any:
        """A metric layer by layer, one line a learner, as a matplotlib figure."""
        return layer_chart(self.layers(metric), metric)

    def _repr_html_(self) -> str:
        """A small table for notebooks: a line a learner, a column a metric."""
        from html import escape

        names, value = self._shown()
        lines = "".join(
            f"<tr><th>{escape(learner)}</th>"
            + "".join(f"<td>{_cell(value.get((learner, name)))}</td>" for name in names)
            + "</tr>"
            for learner in self.learned
        )
        heads = "".join(f"<th>{escape(metric_title(name))}</th>" for name in names)
        return f"<p>{escape(repr(self))}</p><table><tr><th></th>{heads}</tr>{lines}</table>"

    def __str__(self) -> str:
        """A line a learner: accuracy, likeness, and the response where it was measured."""
        episode = self.lesson.episode
        at_rate = "" if self.lr is None else f", lr {self.lr:g}"
        head = f"{episode.task.name}, {self.lesson.shots_used} shots, seed {episode.seed}{at_rate}"
        names, value = self._shown()
        width = max(map(len, self.learned))
        lines = [
            f"  {learner:{width}}  " + "  ".join(f"{_cell(value.get((learner, name))):>{len(name)}}" for name in names)
            for learner in self.learned
        ]
        heads = f"  {'':{width}}  " + "  ".join(names)
        return "\n".join([head, heads, *lines, self.verdict])


def compare(
    model: Model | str | Path,
    task: Task | Episode | str | Path | Any = None,
    learners: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = ("gd", "lcgd"),
    shots: int = 32,
    seed: int = 0,
    *,
    lr: float | np.floating[Any] | None = None,
    queries: int | Sequence[Shown | str] = 200,
    demonstrations: Sequence[Shown] | None = None,
    labels: Sequence[str] | None = None,
    template: str | None = None,
    variant: str = "trained",
    device: str = "auto",
    metrics: Sequence[str] | None = None,
    per_head: bool = False,
    data: str | Path | None = None,
    interventions: str | Sequence[str] = (),
    draws: int = 12,
    progress: bool | None = None,
    **episode: Any,
) -> Comparison:
    """Show a model the same demonstrations in its prompt and by gradient descent, and compare the changes.

    Args:
        model: ``"embedded"``, a folder, a hub name, a `Model`, or a pair of transformers' module and tokenizer.
        task: A task's name, the path of its YAML file, a table (`Task.from_data`), a `Task`, or an `Episode` of your
            own (`Episode.of`): ``shots``, ``seed`` and ``queries`` are then the episode's.
        learners: Names, or mappings with a name and options (``{"learner": "lcgd", "readout": "attention"}``); one may
            stand alone. ``lcgd/random-labels`` is a learner under a control.
        shots: How many demonstrations are shown.
        seed: Which draw of demonstrations. Several seeds are a study: `run_study`.
        lr: The learning rate of gradient learners. None: the model card's for the task, or one is chosen as
            ``--lr auto`` does; for demonstrations of your own, the one at which GD best predicts one that is left out.
        queries: How many are asked at most; with ``demonstrations``, the queries themselves: texts, or pairs of text
            and label. Queries without a label have no accuracy.
        demonstrations: Pairs of text and label, in place of a task.
        labels: The label words of your own demonstrations, where there are more than these show.
        template: How a prompt is made of a text of your own: ``"Review: {text} Sentiment:"``.
        variant: ``trained``, ``untrained``, ``trained-embeddings`` or ``shuffled``, of a model that is loaded here.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``, for a model that is loaded here.
        metrics: Names; ``default`` and ``all`` stand for several. None: the usual ones, and those that you registered.
        per_head: Rows for every attention head too.
        data: A folder to read catalog tasks from (``<task>/<split>.jsonl``), in place of the hub.
        interventions: ``relabel``, ``flip-one``, ``reorder``: what the demonstrations say is changed, and how learners
            respond is compared; demonstrations are then drawn balanced unless you say otherwise.
        draws: How many changes of an intervention.
        progress: Whether to show a progress bar. None: in a notebook and on a terminal.
        **episode: To `Episode.draw`: ``order``, ``balanced``, ``demo_labels``, ``corrupt``.

    Raises:
        InputError: A name, number or file that cannot be used; the message says which, and what is accepted.

    >>> from dualscope import compare
    >>> c = compare("embedded", "embedded-sst2", ["gd", "lcgd"], shots=8, queries=20)
    >>> c.lr  # recorded in the model's card
    1.0
    >>> sorted(c.traces)
    ['gd', 'in-context', 'lcgd', 'zero-shot']
    >>> c.table("accuracy").num_rows, c.layers("sim_aou")["gd"].ndim
    (4, 1)
    >>> c = compare("embedded", "embedded-sst2", "gd", shots=8, queries=10, interventions="relabel", draws=8)
    >>> [row["reference"] for row in c.rows if row["metric"] == "response_answers"]
    ['in-context', 'plant:gd']
    >>> shown = [("a fine film", "Positive"), ("a dull plot", "Negative")]
    >>> compare("embedded", demonstrations=shown, queries=["a fine plot"], learners="gd", lr=1.0)
    Comparison of in-context, gd on 1 query of examples, 2 shots
    """
    from dualscope.learners import LEARNERS, Bench, identify, role_of
    from dualscope.metrics import METRICS, expand, registered_elsewhere, wanted_by
    from dualscope.metrics.measured import measure_cell

    lr = rate(lr)
    shots, seed, draws = whole(shots, "shots", 1), whole(seed, "seed", 0), whole(draws, "draws", 1)
    check_keywords(episode, inspect.signature(compare).parameters)
    asked = learners_of(learners)
    model = as_model(model, variant, device)
    given = task if isinstance(task, Episode) else None
    labelled = True
    if demonstrations is not None:
        if task is not None or isinstance(queries, (int, float, np.number)):
            raise InputError("demonstrations stand in place of a task, and need queries: a list of texts, or of pairs")
        given = own_episode(demonstrations, queries, labels, template, seed)
        labelled = not any(isinstance(query, str) for query in queries)
        task = given.task
    elif task is None:
        raise InputError("give a task, an episode, or demonstrations and queries of your own")
    elif not isinstance(queries, (int, float, np.number)) or labels is not None or template is not None:
        raise InputError("queries, labels and template of your own need demonstrations of your own beside them")
    count = whole(queries, "queries", 1) if isinstance(queries, (int, float, np.number)) else len(queries)
    if given is not None:
        shots, seed, count = given.shots, given.seed, len(given.queries)
        if episode:
            raise InputError(f"an episode is given, so '{next(iter(episode))}' has been decided already")
    task = task.task if isinstance(task, Episode) else task
    if rows_of(task) is not None:
        task = Task.from_data(task)
    task = task if isinstance(task, Task) else Task.load(task, data=data)
    named = [identify(name, options, control) for name, control, options in asked]
    asked_for = [interventions] if isinstance(interventions, str) else list(interventions)
    if asked_for and given is None:
        episode.setdefault("balanced", True)
    drawn = given or Episode.draw(task, shots=shots, seed=seed, queries=count, **episode)
    lesson = make_lesson(drawn, model.tokenizer, model.max_positions)
    chosen = expand(["default", *registered_elsewhere()] if metrics is None else metrics, per_head)
    bench = Bench(model, lesson, want=wanted_by(chosen))
    if lr is None and any(LEARNERS[learning.name].needs_lr for learning in named):
        recorded = recorded_rates([model.name], [task.name]) if _has_source(model) else {}
        plain = LEARNERS[PLAIN]()
        lr = recorded.get((model.name, task.name)) or plain.choose([bench], plain.options()).settings["lr"]
    under_way = [replace(learning, lr=lr if LEARNERS[learning.name].needs_lr else None) for learning in named]
    roles = {learning: role_of(learning) for learning in dict.fromkeys((ZERO_SHOT, IN_CONTEXT, *under_way))}
    learned: dict[str, Learned] = {}
    rows: list[ComparedRow] = []
    with steps(len(roles) * (1 + len(asked_for)), progress) as begin:
        for learning, role in roles.items():
            begin(learning.label)
            reference = None if learning == ZERO_SHOT else IN_CONTEXT
            beside = companions(learning, role, reference, roles)
            found = measure_cell(bench, learning, beside, reference=reference, metrics=chosen, per_head=per_head)
            learned[learning.label] = found.result.learned
            rows += _compared_rows(learning, role, None, found.rows)
        for kind in asked_for:
            rows += _responses(bench, kind, draws, roles, begin)
    kept = rows if labelled else [row for row in rows if not METRICS[row["metric"]].needs_gold]
    return Comparison(lesson, learned, lr, tuple(kept))


def _compared_rows(
    learning: LearnerSpec, role: str, intervention: str | None, rows: Iterable[MetricRow]
) -> list[ComparedRow]:
    who = {"learner": learning.label, "control": learning.control, "role": role, "intervention": intervention}
    return [cast("ComparedRow", {**who, **row}) for row in rows]


def _responses(
    bench: Bench, kind: str, draws: int, roles: Mapping[LearnerSpec, str], begin: Callable[[str], None]
) -> list[ComparedRow]:
    """The rows of every learner's response to an intervention, with the plants of those that can be planted."""
    from dualscope.learners.response_bench import ResponseBench, cannot_be_planted
    from dualscope.metrics.measured_response import ResponseMeter

    meter = ResponseMeter(ResponseBench(bench, kind, draws))
    hypotheses = [learning for learning, role in roles.items() if role == "hypothesis"]
    plants = [(plant_name(learning.label), learning) for learning in hypotheses if not cannot_be_planted(learning)]
    found: list[ComparedRow] = []
    for learning, role in roles.items():
        begin(f"{learning.label}, {kind}")
        if learning != ZERO_SHOT:
            own = meter.measure(learning, plants if role == "hypothesis" else ()).rows
            found += _compared_rows(learning, role, kind, own)
    return found


def _cell(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else short(value)


def _has_source(model: Model) -> bool:
    """Whether a model was loaded by a name that has files, rather than built in memory."""
    return model.name == "embedded" or Path(model.name).is_dir()


def layer_chart(lines: Mapping[str, np.ndarray], metric: str) -> Any:
    """One line a learner, [layers] each."""
    from dualscope.report.charts.curves import Line
    from dualscope.report.charts.figures import layers_figure
    from dualscope.report.charts.palette import colour

    drawn = {}
    for name, values in lines.items():
        unknown = (math.nan,) * len(values)
        drawn[name] = Line(tuple(range(len(values))), tuple(map(float, values)), unknown, unknown)
    colours = {name: colour(LearnerSpec(re.split(r"[/\[]", name)[0])) for name in lines}
    return layers_figure({metric_title(metric): drawn}, metric_title(metric), colours, 6)


@contextmanager
def steps(total: int, wanted: bool | None) -> Iterator[Callable[[str], None]]:
    """Inside, ``begin(name)`` says which of ``total`` steps begins; the bar disappears at the end.

    >>> with steps(2, wanted=False) as begin:
    ...     begin("gd")
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = (console.is_terminal or console.is_jupyter) if wanted is None else wanted
    if shown and console.is_jupyter:  # there a bar of rich's is an output of the cell, and stays
        with _in_a_notebook(total) as begin:
            yield begin
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    about = TextColumn("{task.description}", markup=False)
    with Progress(*columns, about, console=console, transient=True, disable=not shown) as bars:
        bar = bars.add_task("", total=total)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            bars.update(bar, completed=begun, description=name)
            begun += 1

        yield begin


@contextmanager
def _in_a_notebook(total: int) -> Iterator[Callable[[str], None]]:
    """One line of the error stream, written over at every step and cleared at the end."""
    begun, longest = 0, 0

    def show(line: str) -> None:
        nonlocal longest
        longest = max(longest, len(line))
        sys.stderr.write("\r" + line.ljust(longest))
        sys.stderr.flush()

    def begin(name: str) -> None:
        nonlocal begun
        filled = round(24 * begun / max(total, 1))
        show(f"{'#' * filled}{'.' * (24 - filled)} {begun}/{total} {name}")
        begun += 1

    try:
        yield begin
    finally:
        show("")
        sys.stderr.write("\r")
