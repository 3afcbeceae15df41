"""One seeded draw: the ordered demonstrations, the queries, and whose labels are corrupted how."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np

from dualscope.core.errors import InputError, check_word
from dualscope.core.spec import EpisodeSpec
from dualscope.core.words import Corrupt, DemoLabels
from dualscope.tasks.mapping import Example, Typed
from dualscope.tasks.task import Task

Side = Literal["icl", "gd"]

QUERY_SEED = 1  # queries are the same whatever the demonstrations (the papers' protocol)


@dataclass(frozen=True)
class Episode:
    """One draw. Both learners read their demonstrations from here, so they see the same ones in the same order.

    >>> episode = Episode.draw(Task.load("embedded-sst2"), shots=4, seed=0, queries=10, demo_labels="flipped")
    >>> len(episode.demonstrations), len(episode.queries)
    (4, 10)
    >>> episode.labels("icl") == tuple(1 - example.label for example in episode.demonstrations)
    True
    """

    task: Task
    seed: int
    shots: int
    order: int | tuple[int, ...]  # 0 as drawn, k the k-th permutation, or a permutation
    balanced: bool  # whether every class has as many demonstrations
    demonstrations: tuple[Example, ...]  # in order, with gold labels
    queries: tuple[Example, ...]
    demo_labels: DemoLabels = "gold"  # what labels the demonstrations are shown with
    corrupt: Corrupt = "both"  # whose labels these are: both learners', or one's alone
    asked: Task | None = None
    """The task that the queries are of, where that is another one."""

    @classmethod
    def from_spec(cls, spec: EpisodeSpec, task: Task, asked: Task | None = None) -> "Episode":
        """The episode that a spec asks for, with the queries of ``asked`` where that is another task.

        A spec without demonstrations draws one, and never shows it.
        """
        return cls.draw(
            task,
            shots=max(spec.shots, 1),
            seed=spec.seed,
            queries=spec.queries,
            order=spec.order,
            balanced=spec.balanced,
            demo_labels=spec.demo_labels,
            corrupt=spec.corrupt,
            queries_from=asked,
        )

    @classmethod
    def draw(
        cls,
        task: Task,
        shots: int = 32,
        seed: int = 0,
        queries: int = 2000,
        order: int | Sequence[int] = 0,
        balanced: bool = False,
        demo_labels: DemoLabels = "gold",
        corrupt: Corrupt = "both",
        queries_from: Task | None = None,
    ) -> "Episode":
        """Demonstrations: the first of the training split shuffled by ``seed``. Queries: of the other, by 1.

        Those that the task lists are used unchanged, with every seed: the first ``shots``, the first ``queries``.

        Args:
            task: Where both are drawn from.
            shots: How many demonstrations.
            seed: Which draw of them.
            queries: How many are asked at most.
            order: 0 keeps the demonstrations as drawn, k > 0 is the k-th seeded permutation of them, and a sequence is
                a permutation of your own.
            balanced: Whether every class has as many demonstrations.
            demo_labels: ``gold``, ``flipped`` (the next class), ``random``, or ``abstract`` (words that mean nothing).
            corrupt: Who sees the changed labels: ``both``, ``icl`` or ``gd``.
            queries_from: Another task, or the same in another template, with the same classes: what the demonstrations
                teach is then asked there.

        Raises:
            InputError: More shots than the split has examples, no query left, or a number or word out of range.
        """
        check_word(demo_labels, get_args(DemoLabels), "demo_labels")
        check_word(corrupt, get_args(Corrupt), "corrupt")
        if demo_labels == "abstract" and corrupt != "both":
            raise InputError(
                f"demo_labels: abstract gives the classes other words, for both learners and the queries; "
                f"corrupt: {corrupt} cannot be had with it"
            )
        for name, value, least in (("shots", shots, 1), ("queries", queries, 1), ("seed", seed, 0)):
            if value < least:
                raise InputError(f"{name} must be at least {least}, found {value}")
        if queries_from is not None:
            check_same_classes(task, queries_from)
        order = order if isinstance(order, int) else tuple(order)
        drawn = _draw_demonstrations(task, shots, seed, balanced)
        demonstrations = tuple(drawn[i] for i in arrangement(order, seed, shots))
        return cls(
            task=task,
            seed=seed,
            shots=shots,
            order=order,
            balanced=balanced,
            demonstrations=demonstrations,
            queries=_draw_queries(queries_from or task, {example.id for example in drawn}, queries),
            demo_labels=demo_labels,
            corrupt=corrupt,
            asked=queries_from,
        )

    @classmethod
    def of(cls, demonstrations: Sequence[Typed], queries: Sequence[Typed], *, task: Task, seed: int = 0) -> "Episode":
        """One's own demonstrations and queries, unchanged.

        Args:
            demonstrations: `Example`s, mappings, or pairs of text and label, as for `Task.from_examples`.
            queries: The same.
            task: Has the template and the label words.
            seed: That of the controls: random labels, random updates.

        >>> task = Task.from_examples(
        ...     [("a fine film", "good"), ("a dull plot", "bad")], labels=["bad", "good"], template="{text} It was"
        ... )
        >>> episode = Episode.of(task.train, [("a fine plot", "good")], task=task)
        >>> episode.shots, episode.queries[0].id, task.prompt(episode.queries[0])
        (2, 'queries:0', 'a fine plot It was')
        """
        for name, given in (("demonstration", demonstrations), ("query", queries)):
            if not given:
                raise InputError(f"an episode needs at least one {name}")
        shown, asked = task.examples(demonstrations, "demonstrations"), task.examples(queries, "queries")
        return cls(task=task, seed=seed, shots=len(shown), order=0, balanced=False, demonstrations=shown, queries=asked)

    def labels(self, side: Side) -> tuple[int, ...]:
        """The labels that a learner is shown, one a demonstration, in order; corrupted where asked."""
        gold = tuple(example.label for example in self.demonstrations)
        if self.demo_labels in ("gold", "abstract") or self.corrupt not in ("both", side):
            return gold
        classes = len(self.task.labels)
        if self.demo_labels == "flipped":
            return tuple((label + 1) % classes for label in gold)
        # Drawn before the demonstrations are put in order: a demonstration keeps its label in every order.
        random = np.random.default_rng([self.seed, 1]).integers(classes, size=self.shots)
        return tuple(int(random[i]) for i in arrangement(self.order, self.seed, self.shots))

    def provenance(self) -> dict[str, Any]:
        """All that is needed to say which examples were shown, in which order and under which labels."""
        return {
            "task": self.task.name,
            "seed": self.seed,
            "shots": self.shots,
            "order": list(self.order) if isinstance(self.order, tuple) else self.order,
            "balanced": self.balanced,
            "demo_labels": self.demo_labels,
            "corrupt": self.corrupt,
            "queries_from": None if self.asked is None else self.asked.name,
            "demonstrations": [example.id for example in self.demonstrations],
            "labels_icl": list(self.labels("icl")),
            "labels_gd": list(self.labels("gd")),
            "queries": len(self.queries),
        }


def spare(task: Task, episodes: Sequence[Episode], limit: int = 200) -> tuple[Example, ...]:
    """Training examples that are neither demonstrations nor queries of any of these episodes.

    What a learning rate may be chosen on without looking at what is measured.
    """
    return tuple(islice(spares(task, episodes), limit))


def spares(task: Task, episodes: Sequence["Episode"]) -> Iterator[Example]:
    """The same one after another: a split may be larger than memory."""
    used = {e.id for episode in episodes for e in (*episode.demonstrations, *episode.queries)}
    for i in np.random.default_rng([0, 3]).permutation(len(task.train)):
        example = task.train[i]
        if example.id not in used and not is_listed(task, example):
            yield example


def check_same_classes(task: Task, asked: Task) -> None:
    """Refuse queries of another task that has other classes than the one that is taught."""
    if asked.labels != task.labels:
        raise InputError(
            f"queries_from: the classes of '{asked.name}' are {', '.join(asked.labels)}, those of '{task.name}' "
            f"{', '.join(task.labels)}; demonstrations and queries need the same label words"
        )


def arrangement(order: int | tuple[int, ...], seed: int, shots: int) -> tuple[int, ...]:
    """Which drawn demonstration stands where.

    >>> arrangement(0, seed=7, shots=3), arrangement((2, 0, 1), seed=7, shots=3)
    ((0, 1, 2), (2, 0, 1))
    """
    if isinstance(order, tuple):
        if sorted(order) != list(range(shots)):
            raise InputError(f"order must be a permutation of 0 to {shots - 1}, found {list(order)}")
        return order
    if order < 0:
        raise InputError(f"order must be 0 (as drawn), a positive number or a permutation, found {order}")
    if order == 0:
        return tuple(range(shots))
    return tuple(int(i) for i in np.random.default_rng([seed, 2, order]).permutation(shots))


def _draw_demonstrations(task: Task, shots: int, seed: int, balanced: bool) -> list[Example]:
    listed, pool = task.demonstrations, task.train
    if listed is not None:
        if shots > len(listed):
            raise InputError(
                f"task '{task.name}': {shots} shots were asked for, and the task file lists {len(listed)} "
                f"demonstrations; ask for {len(listed)} or fewer"
            )
        return list(listed[:shots])
    if shots > len(pool):
        raise InputError(
            f"task '{task.name}': {shots} shots were asked for, and the split "
            f"'{task.config.splits.train}' has {len(pool)} examples"
        )
    drawn = (pool[i] for i in np.random.default_rng(seed).permutation(len(pool)))
    shuffled = (example for example in drawn if not is_listed(task, example))
    return _balance(shuffled, shots, task) if balanced else list(islice(shuffled, shots))


def is_listed(task: Task, example: Example) -> bool:
    """Whether the task file lists this text: it stands in the data under another id, and must not be drawn again."""
    return any(example.fields == one.fields for one in (*(task.demonstrations or ()), *(task.queries or ())))


def _draw_queries(task: Task, demonstrations: set[str], limit: int) -> tuple[Example, ...]:
    if task.queries is not None:
        return task.queries[:limit]
    pool = task.evaluation
    order = np.random.default_rng(QUERY_SEED).permutation(len(pool))
    drawn = (pool[i] for i in order)
    free = (one for one in drawn if one.id not in demonstrations and not is_listed(task, one))
    queries = tuple(islice(free, limit))
    if not queries:
        raise InputError(
            f"task '{task.name}': every example of the split '{task.config.splits.evaluation}' is a "
            f"demonstration, none is left as a query; ask for fewer shots"
        )
    return queries


def _balance(shuffled: Iterable[Example], shots: int, task: Task) -> list[Example]:
    """The first of each class, in the order drawn; the remainder goes to the classes that come first."""
    each, extra = divmod(shots, len(task.labels))
    taken = dict.fromkeys(range(len(task.labels)), 0)
    chosen = []
    for example in shuffled:
        spends = taken[example.label] == each and extra > 0
        if taken[example.label] < each or spends:
            extra -= spends
            taken[example.label] += 1
            chosen.append(example)
        if len(chosen) == shots:
            break
    if len(chosen) < shots:
        found = ", ".join(f"{task.labels[c]} {n}" for c, n in taken.items())
        raise InputError(
            f"task '{task.name}': {shots} balanced shots need {each} or more of every class in the split "
            f"'{task.config.splits.train}'; found at most {found}"
        )
    return chosen
