"""What a verdict is reached from: per-query values of every learner, task, variant and seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dualscope.core.errors import InputError
from dualscope.core.estimate import Estimate
from dualscope.core.rows import QueryColumn
from dualscope.core.spec import IN_CONTEXT, CellSpec, EpisodeSpec, LearnerSpec
from dualscope.core.statistics import SHARES, finite_means
from dualscope.core.words import Role

if TYPE_CHECKING:
    import pyarrow as pa

USED = (
    *SHARES["explained"],
    "sim_aou",
    "sim_aou_mismatched",
    "sim_aou_orthogonal",
    "sim_aou_random",
    "sim_aou_to_null",
)
SeedValues = tuple[tuple[str, ...], np.ndarray]  # queries, their values


class EvidenceKey(NamedTuple):
    """Whose values: a metric of a learner on a task, where it has a reference of its own with that."""

    task: str
    variant: str
    learning: LearnerSpec
    metric: str
    reference: LearnerSpec | str | None = None


@dataclass
class Evidence:
    """Values by key, then by seed, then by query.

    The metric `correct` is 1 where a query is predicted correctly, and `follows` where the prediction is what flipped
    demonstrations teach; the others are named as in the tables of queries.

    >>> evidence, gd = Evidence(), LearnerSpec("gd", lr=0.1)
    >>> evidence.add(EvidenceKey("sst2", "trained", gd, "sim_aou"), 0, ["a", "b"], [0.2, 0.4])
    >>> evidence.pair(EvidenceKey("sst2", "trained", gd, "sim_aou"))[0]
    array([[0.2, 0.4]])
    """

    values: dict[EvidenceKey, dict[int, list[SeedValues]]] = field(default_factory=dict)
    roles: dict[LearnerSpec, Role] = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    chance: dict[str, float] = field(default_factory=dict)
    """By task, what guessing gets right: one in as many as there are classes."""

    def learned(self, learning: LearnerSpec) -> str:
        """The metric that says whether a learner learned what it was shown."""
        side = "icl" if learning.name == IN_CONTEXT.name else "gd"
        return "follows" if side in self.flipped else "correct"

    def add(
        self, key: EvidenceKey, seed: int, queries: Sequence[str], values: Sequence[float | None] | np.ndarray
    ) -> None:
        """Several values of the same query and seed (orders, draws of weights) are averaged."""
        part = tuple(queries), np.array(values, float)
        self.values.setdefault(key, {}).setdefault(seed, []).append(part)

    @property
    def tasks(self) -> list[str]:
        return sorted({key.task for key in self.values})

    def learnings(self, task: str) -> list[LearnerSpec]:
        found = {key.learning for key in self.values if (key.task, key.variant) == (task, "trained")}
        return sorted(found, key=lambda learning: (learning.label, learning.lr or 0.0))

    def references(self, task: str, learning: LearnerSpec, metric: str) -> list[LearnerSpec]:
        """What a learner's metric was taken against, besides the cell's own reference."""
        wanted = (task, "trained", learning, metric)
        found = [key.reference for key in self.values if key[:4] == wanted]
        return sorted((r for r in found if isinstance(r, LearnerSpec)), key=lambda reference: reference.label)

    def __contains__(self, key: EvidenceKey) -> bool:
        return all(part in self.values for part in _parts(key))

    def estimate(self, key: EvidenceKey) -> Estimate:
        """The mean over seeds and queries; of an explained share, the ratio of its sums over seeds."""
        found = self.pair(*_parts(key))
        return Estimate.of_share(*found) if key.metric in SHARES else Estimate.of(*found)

    def apart(self, key: EvidenceKey, other: EvidenceKey) -> Estimate:
        """How much more the first has than the second, paired by seed and query."""
        if key.metric not in SHARES:
            left, right = self.pair(key, other)
            return Estimate.of(left - right)
        one_left, one_whole, other_left, other_whole = self.pair(*_parts(key), *_parts(other))
        return Estimate.of_shares_apart((one_left, one_whole), (other_left, other_whole))

    def ratio(self, key: EvidenceKey, other: EvidenceKey) -> Estimate:
        """The first as a share of the second."""
        if key.metric not in SHARES:
            return Estimate.of_ratio(*self.pair(key, other))
        one_left, one_whole, other_left, other_whole = self.pair(*_parts(key), *_parts(other))
        return Estimate.of_ratio(one_whole - one_left, other_whole - other_left)

    def pair(self, *keys: EvidenceKey) -> list[np.ndarray]:
        """[seeds, queries] of each key, over the seeds and the queries that all of them have."""
        found = [self.values.get(key, {}) for key in keys]
        seeds = sorted(set(found[0]).intersection(*found))
        if not seeds:
            return [np.empty((0, 0)) for _ in keys]
        # Mostly one list of queries, shared by all.
        lists = [{queries for seed in seeds for queries, _ in by[seed]} for by in found]
        has = [set().union(*own) for own in lists]
        place = {query: i for i, query in enumerate(sorted(has[0].intersection(*has)))}
        where = {queries: np.array([place.get(q, -1) for q in queries], int) for own in lists for queries in own}

        def row(parts: Sequence[SeedValues]) -> np.ndarray:
            aligned = np.full((len(parts), len(place)), np.nan)
            for i, (queries, values) in enumerate(parts):
                at = where[queries]
                aligned[i, at[at >= 0]] = values[at >= 0]
            return finite_means(aligned, 0)

        return [np.array([row(by[seed]) for seed in seeds]) for by in found]

    @classmethod
    def collect(cls, cells: Iterable[tuple[CellSpec, pa.Table]]) -> dict[EpisodeSpec, Evidence]:
        """Evidence by setting, from cells and their tables of queries.

        Zero-shot sees no demonstrations, so its cells count in every setting of its model with the same queries.
        """
        pairs = list(cells)
        settings = sorted({cell.episode.setting for cell, _ in pairs if cell.role != "baseline"}, key=repr)
        found = {setting: cls(flipped=setting.flipped) for setting in settings}
        for cell, table in pairs:
            for setting in settings:
                if cell.is_within(setting):
                    found[setting].add_table(cell, table)
        return found

    def add_table(self, cell: CellSpec, table: pa.Table) -> None:
        """What a cell's table of queries says."""
        if "query" not in table.column_names:
            raise InputError(
                f"a table of queries needs the column 'query'; found {', '.join(table.column_names) or 'none'}"
            )
        task, variant, seed, learning = cell.episode.task, cell.episode.model.variant, cell.episode.seed, cell.learning
        self.roles[learning] = cell.role
        queries = table["query"].to_pylist()
        for place, described in enumerate(table.schema):
            column = QueryColumn.of(described)
            if column is not None and column.metric in USED and not column.layers:
                key = EvidenceKey(task, variant, learning, column.metric, column.reference)
                self.add(key, seed, queries, table.column(place).to_pylist())
        if "prediction" in table.column_names and "label" in table.column_names:
            said, gold = (np.asarray(table[name]) for name in ("prediction", "label"))
            self.add(EvidenceKey(task, variant, learning, "correct"), seed, queries, (said == gold).astype(float))
            if "label_logprobs" in table.column_names and len(gold):
                self.chance[task] = 1 / len(table["label_logprobs"][0])
            if self.flipped and len(gold):
                classes = len(table["label_logprobs"][0])
                follows = (said == (gold + 1) % classes).astype(float)
                self.add(EvidenceKey(task, variant, learning, "follows"), seed, queries, follows)


def _parts(key: EvidenceKey) -> tuple[EvidenceKey, ...]:
    """Whose values make a number: of an explained share, what is left and all there is."""
    if key.metric not in SHARES:
        return (key,)
    return tuple(key._replace(metric=part) for part in SHARES[key.metric])
