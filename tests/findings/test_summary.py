"""A run in a few numbers: shares are ratios of sums over seeds, and every seed's value is kept."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dualscope.core.rows import COLUMNS, QueryColumn, SummaryRow
from dualscope.core.spec import CellSpec, EpisodeSpec
from dualscope.findings.summary import recalled, summarise
from dualscope.studies.run_folder.storage import RunFolder

BASE = {
    "model": "tiny", "variant": "trained", "task": "sst2", "shots": 4, "learner": "kernel", "control": None,
    "role": "hypothesis", "lr": None, "demo_labels": "gold", "corrupt": "both", "queries_from": None, "options": "{}",
    "init_seed": None, "order": 0, "shots_used": 4, "intervention": None, "family": None,
}  # fmt: skip


def summary_of(folder: Path, wholes: list[float], lefts: list[float], order: int = 0) -> list[SummaryRow]:
    """Of a run with one cell a seed, each of two queries that have the same K."""
    run = RunFolder.create(folder)
    cells = {}
    for seed, (whole, left) in enumerate(zip(wholes, lefts, strict=True)):
        columns: Any = {**EpisodeSpec.of_row(BASE).columns, **BASE, "seed": seed, "order": order}
        share = 1 - left / whole if whole >= 0.02 else math.nan
        numbers = {"explained": share, "kl_icl": left, "kl_icl_zero_shot": whole, "accuracy": left}
        rows: Any = [
            {**dict.fromkeys(COLUMNS), **columns, "metric": name, "value": value, "low": math.nan, "high": math.nan}
            | {"n": 2, "reference": None if name == "accuracy" else "in-context"}
            for name, value in numbers.items()
        ]
        made = {"kl_icl": [left, left], "kl_icl_zero_shot": [whole, whole], "accuracy": [left, left]}
        fields = [pa.field("query", pa.string()), *(QueryColumn(name).field(pa.float64()) for name in made)]
        table = pa.table([["a", "b"], *made.values()], schema=pa.schema(fields))
        run.store(f"{seed:020x}", rows, table)
        cells[f"{seed:020x}"] = CellSpec.of_row(columns, "in-context")
    found = summarise(run, cells)
    assert repr(recalled(run, cells)) == repr(found)
    return found


def row_of(rows: list[SummaryRow], metric: str) -> SummaryRow:
    return next(row for row in rows if row["metric"] == metric)


def test_a_runs_share_is_a_ratio_of_sums(tmp_path: Path) -> None:
    """A mean of the seeds' shares would be -9.5: one seed with little to explain would carry it."""
    row = row_of(summary_of(tmp_path / "run", [1.0, 0.025], [0.5, 0.5]), "explained")
    assert row["value"] == pytest.approx(1 - 1.0 / 1.025)
    assert row["each"] == pytest.approx((0.5, -19.0))
    assert row["seeds"] == 2


def test_nothing_to_explain_is_asked_of_the_sums(tmp_path: Path) -> None:
    some = row_of(summary_of(tmp_path / "some", [1.0, 0.01, 0.5], [0.5, 0.01, 0.25]), "explained")
    assert some["value"] == pytest.approx(1 - 0.76 / 1.51)
    assert some["seeds"] == 3  # none is dropped for what it shows
    assert some["each"][::2] == pytest.approx((0.5, 0.5))
    assert math.isnan(some["each"][1])
    none = row_of(summary_of(tmp_path / "none", [0.01, 0.02], [0.001, 0.001]), "explained")
    assert math.isnan(none["value"])
    assert (none["seeds"], none["each"]) == (0, ())


def test_every_seeds_value_is_kept_and_read_again(tmp_path: Path) -> None:
    rows = summary_of(tmp_path / "run", [1.0, 1.0, 1.0], [1 / 3, 0.2, 0.1])
    assert row_of(rows, "accuracy")["each"] == (1 / 3, 0.2, 0.1)
