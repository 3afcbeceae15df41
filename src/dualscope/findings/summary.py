"""A run in a few numbers: every aggregate metric over seeds, with crossed seed x query intervals. No torch."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualscope.core.canonical import fingerprint
from dualscope.core.query_columns import column_name
from dualscope.core.statistics import RESAMPLES, quantiles, ratio, resample_counts
from dualscope.findings.stored import StoredCell
from dualscope.studies.run_folder.storage import Run

KEYS = (
    "model",
    "variant",
    "task",
    "shots",
    "learner",
    "control",
    "role",
    "lr",
    "demo_labels",
    "corrupt",
    "options",
)
COLUMNS = (*KEYS, "metric", "reference", "value", "low", "high", "seeds", "queries")
ALL_TASKS = "all tasks"
FILE, STAMP = "summary.csv", "summary_of.json"

Row = dict[str, Any]


def summarise(run: Run, cells: Sequence[StoredCell]) -> list[Row]:
    """The summary of a study's stored cells; the stored one where it is of the same cells."""
    ids = [cell.id for cell in cells]
    rows = recalled(run, ids)
    if rows is None:
        rows = compute(run, cells)
        write(run, rows, ids)
    return rows


def recalled(run: Run, cells: Iterable[str]) -> list[Row] | None:
    """The stored summary where it is whole and of these cells."""
    try:
        data = run.folder.read(FILE)
    except OSError:
        return None
    if run.recall(STAMP) != {"of": stamp_of(cells), "sha256": hashlib.sha256(data).hexdigest()}:
        return None
    return _parse(data.decode())


def stamp_of(cells: Iterable[str]) -> str:
    """What a stored summary is of: these cells, in these columns."""
    return fingerprint([KEYS, *sorted(cells)])


def compute(run: Run, cells: Sequence[StoredCell]) -> list[Row]:
    """Group the cells by all but their draws (seed, order, weights' draw), and each group's mean over tasks."""
    groups: dict[tuple[Any, ...], list[tuple[StoredCell, list[Row]]]] = {}
    for cell in cells:
        rows = _aggregates(run.rows([cell.id])).to_pylist()
        if rows:
            groups.setdefault(tuple(rows[0][key] for key in KEYS), []).append((cell, rows))
    found: list[Row] = []
    draws: dict[tuple[Any, ...], list[tuple[Row, np.ndarray]]] = {}
    for key, members in groups.items():
        for row, resampled in _summarise_group(run, dict(zip(KEYS, key, strict=True)), members):
            found.append(row)
            across = tuple(row[k] for k in COLUMNS[: COLUMNS.index("value")] if k not in ("task", "lr"))
            draws.setdefault(across, []).append((row, resampled))
    for parts in draws.values():
        tasks = {row["task"] for row, _ in parts}
        if len(tasks) == len(parts) > 1:
            found.append(_mean_over_tasks(parts))
    return found


def _aggregates(table: pa.Table) -> pa.Table:
    """The rows of no single layer, head or step: a few of thousands, so they are picked before they are unpacked."""
    whole = [pc.is_null(table[name]) for name in ("layer", "head", "step")]
    return table.filter(pc.and_(pc.and_(whole[0], whole[1]), whole[2]))


def _summarise_group(
    run: Run, key: Row, members: Sequence[tuple[StoredCell, list[Row]]]
) -> list[tuple[Row, np.ndarray]]:
    """Every metric of the cells that differ in nothing but their draw, with its resampled means."""
    tables = [run.queries(cell.id) for cell, _ in members]
    queries = sorted({query for table in tables for query in table["query"].to_pylist()})
    place = {query: i for i, query in enumerate(queries)}
    where = [[place[query] for query in table["query"].to_pylist()] for table in tables]
    seeds = [rows[0]["seed"] for _, rows in members]
    drawn = sorted(set(seeds))
    by_seed, by_query = (
        resample_counts(n, RESAMPLES, np.random.default_rng([n, 7])) for n in (len(drawn), len(queries))
    )
    # Orders and draws of weights of one seed are no further seeds: they come and go with it.
    by_seed = by_seed[:, [drawn.index(seed) for seed in seeds]]
    found = []
    for metric, reference in dict.fromkeys(
        (r["metric"], r["reference"]) for _, rows in members for r in rows
    ):
        rows = [
            next((r for r in rows if (r["metric"], r["reference"]) == (metric, reference)), None)
            for _, rows in members
        ]
        means = np.array([math.nan if row is None else row["value"] for row in rows])
        values = np.full((len(members), len(queries)), np.nan)
        for i, ((cell, _), table) in enumerate(zip(members, tables, strict=True)):
            name = column_name(metric, reference, cell.reference)
            if name in table.column_names:
                values[i, where[i]] = table[name].to_numpy()
        there = np.isfinite(values)
        if there.any():
            total = (by_query @ np.where(there, values, 0.0).T) * by_seed
            resampled = ratio(total.sum(1), ((by_query @ there.T.astype(float)) * by_seed).sum(1))
        elif len(drawn) > 1:  # a share or a norm: no query has a value of its own, the seeds are what varies
            there = np.isfinite(means)[:, None]
            resampled = ratio(
                by_seed @ np.where(np.isfinite(means), means, 0.0), by_seed @ there[:, 0].astype(float)
            )
        else:
            resampled = np.array([])
        low, high = _ends(resampled, rows)
        n = int(there.any(0).sum()) if there.shape[1] == len(queries) else len(queries)
        finite = means[np.isfinite(means)]
        counted = {seed for seed, mean in zip(seeds, means, strict=True) if math.isfinite(mean)}
        row = {
            **key,
            "metric": metric,
            "reference": reference,
            "value": float(finite.mean()) if len(finite) else math.nan,
            "low": low,
            "high": high,
            "seeds": len(counted),
            "queries": n,
        }
        found.append((row, resampled))
    return found


def _ends(resampled: np.ndarray, rows: Sequence[Row | None]) -> tuple[float, float]:
    if len(resampled):
        low, high = quantiles(resampled)
        return float(low), float(high)
    only = rows[0] if len(rows) == 1 else None
    return (math.nan, math.nan) if only is None else (float(only["low"]), float(only["high"]))


def _mean_over_tasks(parts: Sequence[tuple[Row, np.ndarray]]) -> Row:
    """Tasks weigh the same, and are drawn independently."""
    rates = {row["lr"] for row, _ in parts}
    values = np.array([row["value"] for row, _ in parts])
    values = values[np.isfinite(values)]
    usable = [resampled for _, resampled in parts if len(resampled)]
    low, high = quantiles(np.mean(usable, axis=0)) if len(usable) == len(parts) else (math.nan, math.nan)
    return {
        **parts[0][0],
        "task": ALL_TASKS,
        "lr": next(iter(rates)) if len(rates) == 1 else None,
        "value": float(values.mean()) if len(values) else math.nan,
        "low": float(low),
        "high": float(high),
        "seeds": max(row["seeds"] for row, _ in parts),
        "queries": max(row["queries"] for row, _ in parts),
    }


def write(run: Run, rows: Sequence[Row], cells: Iterable[str]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    run.folder.write(FILE, data)
    run.write_json(STAMP, {"of": stamp_of(cells), "sha256": hashlib.sha256(data).hexdigest()})


def _parse(text: str) -> list[Row]:
    """summary.csv with its numbers as numbers."""
    rows: list[Row] = []
    for line in csv.DictReader(io.StringIO(text)):
        row: Row = {name: value or None for name, value in line.items()}
        for name in ("lr", "value", "low", "high"):
            row[name] = float(row[name]) if row[name] is not None else (None if name == "lr" else math.nan)
        for name in ("shots", "seeds", "queries"):
            row[name] = int(row[name])
        rows.append(row)
    return rows
