"""What a verdict is reached from: per-query values of every learner, task, variant and seed. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dualscope.core.errors import InputError
from dualscope.core.statistics import ratio

SITTING = (
    "balanced",
    "read_at",
    "gd_demonstrations",
    "dtype",
    "subset",
)  # options that are not the learner's
USED = ("sim_aou", "sim_aou_mismatched", "sim_aou_random")
Key = tuple[str, str, str, str]  # task, variant, learner, metric
Part = tuple[tuple[str, ...], np.ndarray]  # queries, their values


@dataclass(frozen=True, order=True)
class Setting:
    """What all cells of one verdict have in common."""

    model: str
    shots: int | None = None
    demo_labels: str = "gold"
    corrupt: str = "both"
    options: str = "{}"


@dataclass
class Evidence:
    """Values by task, variant, learner and metric, then by seed, then by query.

    The metric `correct` is 1 where a query is predicted correctly, and `follows` where the prediction is what flipped
    demonstrations teach; the others are named as in the tables of queries.

    >>> evidence = Evidence()
    >>> evidence.add("sst2", "trained", 0, "gd", "sim_aou", ["a", "b"], [0.2, 0.4])
    >>> evidence.pair(("sst2", "trained", "gd", "sim_aou"))[0]
    array([[0.2, 0.4]])
    """

    values: dict[Key, dict[int, list[Part]]] = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    """Whose demonstrations had flipped labels: `icl`, `gd`."""

    def learned(self, learner: str) -> str:
        """The metric that says whether a learner learned what it was shown."""
        side = "icl" if learner.startswith("in-context") else "gd"
        return "follows" if side in self.flipped else "correct"

    def add(
        self,
        task: str,
        variant: str,
        seed: int,
        learner: str,
        metric: str,
        queries: Sequence[str],
        values: Sequence[float | None] | np.ndarray,
    ) -> None:
        """Several values of the same query and seed (orders, draws of weights) are averaged."""
        part = tuple(queries), np.array(values, float)
        self.values.setdefault((task, variant, learner, metric), {}).setdefault(seed, []).append(part)

    @property
    def tasks(self) -> list[str]:
        return sorted({task for task, *_ in self.values})

    def learners(self, task: str, variant: str = "trained") -> list[str]:
        return sorted({n for t, v, n, _ in self.values if (t, v) == (task, variant)})

    def metrics(self, task: str, learner: str, variant: str = "trained") -> list[str]:
        return sorted({m for t, v, n, m in self.values if (t, v, n) == (task, variant, learner)})

    def __contains__(self, key: Key) -> bool:
        return key in self.values

    def pair(self, *keys: Key) -> list[np.ndarray]:
        """[seeds, queries] of each key, over the seeds and the queries that all of them have."""
        found = [self.values.get(key, {}) for key in keys]
        seeds = sorted(set(found[0]).intersection(*found))
        if not seeds:
            return [np.empty((0, 0)) for _ in keys]
        lists = [
            {queries for seed in seeds for queries, _ in by[seed]} for by in found
        ]  # mostly one list, shared
        has = [set().union(*own) for own in lists]
        place = {query: i for i, query in enumerate(sorted(has[0].intersection(*has)))}
        where = {
            queries: np.array([place.get(q, -1) for q in queries], int) for own in lists for queries in own
        }

        def row(parts: Sequence[Part]) -> np.ndarray:
            aligned = np.full((len(parts), len(place)), np.nan)
            for i, (queries, values) in enumerate(parts):
                at = where[queries]
                aligned[i, at[at >= 0]] = values[at >= 0]
            there = np.isfinite(aligned)
            return ratio(np.where(there, aligned, 0.0).sum(0), there.sum(0))

        return [np.array([row(by[seed]) for seed in seeds]) for by in found]

    @classmethod
    def collect(cls, cells: Iterable[tuple[Mapping[str, Any], Any]]) -> dict[Setting, Evidence]:
        """Evidence by setting, from pairs of (a cell's columns, its table of queries).

        The columns are those of a run's rows (model, variant, task, seed, ...); a table is a pyarrow table or a list
        of dicts. Zero-shot sees no demonstrations, so its cells count in every setting of its model. Where a learner
        was run at several rates, its name has the rate added.
        """
        pairs = [(dict(columns), table) for columns, table in cells]
        settings = sorted({_setting(c) for c, _ in pairs if c["learner"] != "zero-shot"}, key=repr)
        found = {setting: cls(flipped=_flipped(setting)) for setting in settings}
        used = ("label_logprobs",) if any(evidence.flipped for evidence in found.values()) else ()
        read = [(columns, _columns(table, used)) for columns, table in pairs]
        rates: dict[tuple[str, str, Setting], set[float | None]] = {}
        for c, _ in read:
            rates.setdefault((c["task"], _name(c), _setting(c)), set()).add(c.get("lr"))
        for c, table in read:
            same = _setting(c)
            name = _name(c)
            if len(rates[c["task"], name, same]) > 1:
                name = f"{name} lr={c['lr']:g}"
            zero_shot = c["learner"] == "zero-shot"
            for setting in [s for s in settings if s.model == same.model] if zero_shot else [same]:
                found[setting]._add_table(c, name, table)
        return found

    def _add_table(self, cell: Mapping[str, Any], learner: str, table: Mapping[str, Sequence[Any]]) -> None:
        if "query" not in table:
            raise InputError(
                f"a table of queries needs the column 'query'; found {', '.join(table) or 'none'}"
            )
        where = (cell["task"], cell["variant"], int(cell["seed"]), learner)
        for name, column in table.items():
            if _is_used(name) and name not in ("query", "label", "prediction"):
                self.add(*where, name, table["query"], column)
        if "prediction" in table and "label" in table:
            said, gold = np.asarray(table["prediction"]), np.asarray(table["label"])
            self.add(*where, "correct", table["query"], (said == gold).astype(float))
            if self.flipped and len(gold):
                classes = len(table["label_logprobs"][0])
                self.add(*where, "follows", table["query"], (said == (gold + 1) % classes).astype(float))


def _is_used(column: str) -> bool:
    return column in ("query", "label", "prediction", *USED) or (
        column.startswith("sim_aou_to_null[") and column.endswith("]")
    )


def _flipped(setting: Setting) -> tuple[str, ...]:
    if setting.demo_labels != "flipped":
        return ()
    return ("icl", "gd") if setting.corrupt == "both" else (setting.corrupt,)


def _setting(cell: Mapping[str, Any]) -> Setting:
    options = json.loads(cell.get("options") or "{}")
    shared = {key: options[key] for key in SITTING if key in options}
    return Setting(
        str(cell["model"]),
        cell.get("shots"),
        cell.get("demo_labels") or "gold",
        cell.get("corrupt") or "both",
        json.dumps(shared, sort_keys=True),
    )


def _name(cell: Mapping[str, Any]) -> str:
    """The learner with the options that are its own, as rows name it: ``lcgd[readout=attention]``."""
    options = json.loads(cell.get("options") or "{}")
    own = ",".join(f"{key}={options[key]}" for key in sorted(options) if key not in SITTING)
    return f"{cell['learner']}[{own}]" if own else str(cell["learner"])


def _columns(table: Any, more: Sequence[str] = ()) -> dict[str, Sequence[Any]]:
    if hasattr(table, "column_names"):
        used = [name for name in table.column_names if _is_used(name) or name in more]
        return {name: table[name].to_pylist() for name in used}
    rows = list(table)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
