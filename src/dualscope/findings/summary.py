"""A run in a few numbers: every aggregate metric over seeds, with crossed seed x query intervals.

An interval is cut where its metric cannot go: a share ends at 0 and 1.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualscope.core.canonical import fingerprint
from dualscope.core.estimate import NORMAL, Estimate
from dualscope.core.rows import SUMMARY_COLUMNS, SUMMARY_KEYS, CellColumns, Row, SummaryRow, column_name
from dualscope.core.spec import CellSpec, LearnerSpec
from dualscope.core.spreadsheet import as_text, from_text
from dualscope.core.statistics import SHARES, finite_means
from dualscope.studies.run_folder.storage import RunFolder

ALL_TASKS = "all tasks"
SAME_OVER_TASKS = {*SUMMARY_KEYS, "metric", "reference"} - {"task", "lr"}
RULES = 4  # grows with how intervals are made, so that a stored summary of older rules is made anew
FILE, STAMP = "summary.csv", "summary_of.json"


def summarise(run: RunFolder, cells: Mapping[str, CellSpec], keep: bool = True) -> list[SummaryRow]:
    """The summary of a study's stored cells; the stored one where it is of the same cells."""
    rows = recalled(run, cells)
    if rows is None:
        rows = compute(run, cells)
        if keep:
            write(run, rows, cells)
    return rows


def recalled(run: RunFolder, cells: Iterable[str]) -> list[SummaryRow] | None:
    """The stored summary where it is whole and of these cells."""
    try:
        data = run.folder.read(FILE)
    except OSError:
        return None
    if run.recall(STAMP) != {"of": stamp_of(cells), "sha256": hashlib.sha256(data).hexdigest()}:
        return None
    return _parse(data.decode())


def stamp_of(cells: Iterable[str]) -> str:
    """What a stored summary is of: these cells, in these columns, by these rules."""
    return fingerprint([RULES, SUMMARY_KEYS, *sorted(cells)])


def compute(run: RunFolder, cells: Mapping[str, CellSpec]) -> list[SummaryRow]:
    """Group the cells by all but their draws (seed, order, weights' draw), and each group's mean over tasks."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, cell in cells.items():
        columns = cast("dict[str, Any]", cell.columns())
        groups.setdefault(tuple(columns[key] for key in SUMMARY_KEYS), []).append(name)
    # Groups whose cells are packed together are read together; they are told in the order of the cells.
    first = {members[0]: key for key, members in groups.items()}
    made: dict[tuple[Any, ...], list[tuple[SummaryRow, Estimate]]] = {}
    for name in run.pack.in_order(first):
        key = first[name]
        rows = {one: _aggregates(run.rows([one])).to_pylist() for one in groups[key]}
        told = [(one, cells[one].reference, own) for one, own in rows.items() if own]
        made[key] = list(_summarise_group(run, dict(zip(SUMMARY_KEYS, key, strict=True)), told))
    found: list[SummaryRow] = []
    across: dict[tuple[Any, ...], list[tuple[SummaryRow, Estimate]]] = {}
    for key in groups:
        for row, estimate in made[key]:
            found.append(row)
            alike = tuple(value for name, value in row.items() if name in SAME_OVER_TASKS)
            across.setdefault(alike, []).append((row, estimate))
    for parts in across.values():
        tasks = {row["task"] for row, _ in parts}
        if len(tasks) == len(parts) > 1:
            found.append(_mean_over_tasks(parts))
    return found


NEEDED = ["seed", "metric", "reference", "value", "low", "high"]


def _aggregates(table: pa.Table) -> pa.Table:
    """The rows of no single layer, head or step, and of them what a summary needs: a few of thousands of rows and of
    35 columns, so they are picked before they are unpacked.
    """
    whole = [pc.is_null(table[name]) for name in ("layer", "head", "step")]
    return table.select(NEEDED).filter(pc.and_(pc.and_(whole[0], whole[1]), whole[2]))


def _summarise_group(
    run: RunFolder, key: Mapping[str, Any], members: Sequence[tuple[str, LearnerSpec | None, list[Row]]]
) -> Iterator[tuple[SummaryRow, Estimate]]:
    """Every metric of the cells that differ in nothing but their draw."""
    from dualscope.metrics import bounds_of

    tables = [run.queries(name) for name, *_ in members]
    queries = sorted({query for table in tables for query in table["query"].to_pylist()})
    place = {query: i for i, query in enumerate(queries)}
    where = [[place[query] for query in table["query"].to_pylist()] for table in tables]
    seeds = np.array([rows[0]["seed"] for *_, rows in members])
    by_metric = [{(row["metric"], row["reference"]): row for row in rows} for *_, rows in members]
    for metric, reference in dict.fromkeys(name for rows in by_metric for name in rows):
        own = [rows.get((metric, reference)) for rows in by_metric]
        means = np.array([math.nan if row is None else row["value"] for row in own])
        finite = means[np.isfinite(means)]
        value = float(finite.mean()) if len(finite) else math.nan

        def values_of(metric: str, reference: str | None) -> np.ndarray:
            values = np.full((len(members), len(queries)), np.nan)
            for i, ((_, against, _), table) in enumerate(zip(members, tables, strict=True)):
                name = column_name(metric, reference, None if against is None else against.label)
                if name in table.column_names:
                    values[i, where[i]] = table[name].to_numpy()
            return values

        if metric in SHARES:
            left, whole = SHARES[metric]
            estimate = Estimate.of_share(
                _by_seed(seeds, values_of(left, reference)), _by_seed(seeds, values_of(whole, None))
            )
            value = estimate.mean
        else:
            estimate = _estimate(seeds, means, values_of(metric, reference), own)
        interval = estimate.interval.within(bounds_of(metric))
        row: SummaryRow = {
            **cast("CellColumns", key),
            "metric": metric,
            "reference": reference,
            "value": value,
            "low": interval.low,
            "high": interval.high,
            "seeds": estimate.seeds,
            "queries": estimate.queries or len(queries),
            "each": estimate.each,
        }
        yield row, estimate


def _estimate(seeds: np.ndarray, means: np.ndarray, values: np.ndarray, rows: Sequence[Row | None]) -> Estimate:
    """Over seeds and queries; of a share or a norm, of which no query has a value of its own, over seeds alone.

    Orders and draws of weights of one seed are no further seeds: they are averaged first.
    """
    drawn = sorted(set(seeds.tolist()))
    if np.isfinite(values).any():
        return Estimate.of(_by_seed(seeds, values))
    by_seed = [float(finite_means(means[seeds == seed], 0)) for seed in drawn]
    within = [((row["high"] - row["low"]) / (2 * NORMAL)) ** 2 for row in rows if row is not None]
    known = [variance for variance in within if math.isfinite(variance)]
    if len(drawn) == 1 and not known:
        known_seeds = int(math.isfinite(by_seed[0]))
        return Estimate(by_seed[0], math.nan, math.nan, known_seeds, 0, tuple(by_seed[:known_seeds]))
    return Estimate.of_seeds(by_seed, float(np.mean(known)) if known else 0.0)


def _by_seed(seeds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[cells, queries] -> [seeds, queries]."""
    return np.array([finite_means(values[seeds == seed], 0) for seed in sorted(set(seeds.tolist()))])


def _mean_over_tasks(parts: Sequence[tuple[SummaryRow, Estimate]]) -> SummaryRow:
    """Tasks weigh the same, and are drawn independently."""
    from dualscope.metrics import bounds_of

    rates = {row["lr"] for row, _ in parts}
    values = np.array([row["value"] for row, _ in parts])
    values = values[np.isfinite(values)]
    whole = Estimate.mean_of([estimate for _, estimate in parts]).interval
    interval = whole.within(bounds_of(parts[0][0]["metric"]))
    return {
        **parts[0][0],
        "task": ALL_TASKS,
        "lr": next(iter(rates)) if len(rates) == 1 else None,
        "value": float(values.mean()) if len(values) else math.nan,
        "low": interval.low,
        "high": interval.high,
        "seeds": max(row["seeds"] for row, _ in parts),
        "queries": max(row["queries"] for row, _ in parts),
        "each": (),
    }


def write(run: RunFolder, rows: Sequence[SummaryRow], cells: Iterable[str]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, SUMMARY_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        each = " ".join(repr(float(value)) for value in row["each"])
        writer.writerow({**{name: as_text(value) for name, value in row.items()}, "each": each})
    data = text.getvalue().encode()
    run.folder.write(FILE, data)
    run.write_json(STAMP, {"of": stamp_of(cells), "sha256": hashlib.sha256(data).hexdigest()})


def _parse(text: str) -> list[SummaryRow]:
    """summary.csv with its numbers as numbers."""
    rows: list[SummaryRow] = []
    for line in csv.DictReader(io.StringIO(text)):
        row: dict[str, Any] = {name: from_text(value) if value else None for name, value in line.items()}
        for name in ("lr", "value", "low", "high"):
            row[name] = float(row[name]) if row[name] is not None else (None if name == "lr" else math.nan)
        for name in ("shots", "seeds", "queries"):
            row[name] = int(row[name])
        for name in ("chat", "balanced"):
            row[name] = row[name] == "True"
        row["each"] = tuple(map(float, (row["each"] or "").split()))
        rows.append(cast("SummaryRow", row))
    return rows
