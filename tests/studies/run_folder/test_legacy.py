"""A run folder that version 0.1 wrote is read, summed up, judged and reported as if it had been written today."""

import json
import shutil
from pathlib import Path

import pytest

from dualscope import Run
from dualscope.core.learning import Learning
from dualscope.core.query_columns import QueryColumn
from dualscope.core.rows import COLUMNS
from dualscope.report import write_report
from dualscope.report.source import ReportedRun

OLD = Path(__file__).parents[2] / "data" / "run-0.1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "run")


def test_rows_have_todays_columns(old: Path) -> None:
    rows = Run.open(old).rows().to_pylist()
    assert list(rows[0]) == list(COLUMNS)
    found = {(row["learner"], row["control"], row["role"]) for row in rows}
    assert found == {
        ("zero-shot", None, "baseline"),
        ("in-context", None, "reference"),
        ("gd", None, "hypothesis"),
        ("lcgd", None, "hypothesis"),
        ("null-context", None, "null"),
        ("gd", "random-labels", "null"),
        ("gd", "random-update", "null"),
        ("gd", "redraw", "ceiling"),
        ("in-context", "redraw", "ceiling"),
    }
    assert ("gd", "redraw", "gd") in {(r["learner"], r["control"], r["reference"]) for r in rows}


def test_tables_of_queries_say_what_their_columns_are(old: Path) -> None:
    run = Run.open(old)
    columns = {
        column
        for cell in run.stored()
        for field in run.queries(cell).schema
        if (column := QueryColumn.of(field)) is not None
    }
    assert QueryColumn("sim_aou") in columns
    assert QueryColumn("sim_aou_to_null", Learning("null-context")) in columns
    assert QueryColumn("alpha", Learning("gd")) in columns


def test_sql_sees_todays_columns(old: Path) -> None:
    found = Run.open(old).query("select distinct learner, control from rows where control = 'random-labels'")
    assert found.to_pylist() == [{"learner": "gd", "control": "random-labels"}]


def test_it_is_judged_by_todays_rule_and_reported(old: Path, tmp_path: Path) -> None:
    (verdict,) = ReportedRun(old).verdicts
    gd = next(answer for answer in verdict["answers"] if answer["learner"] == "gd")
    controls = {comparison["control"] for comparison in gd["comparisons"]}
    assert {"random-update", "random-labels", "mismatched", "likeness to null-context"} <= controls
    # LCGD had no controls of its own then, and GD's are not taken for them.
    lcgd = next(answer for answer in verdict["answers"] if answer["learner"] == "lcgd")
    assert "random-labels" not in {comparison["control"] for comparison in lcgd["comparisons"]}
    page = write_report([old], tmp_path / "report.html").read_text()
    assert "gd under random-labels" in page


def test_a_later_run_in_it_says_that_its_cells_are_others(old: Path) -> None:
    """Ids cover how numbers are defined: what was stored then is not taken for what would be computed now."""
    known = json.loads((old / "provenance.json").read_text())
    from dualscope.studies import Study
    from dualscope.studies.execute.runner import Runner

    planned = {cell.id for cell in Runner(Study.resolve(file=old / "study.yaml"), old).plan().cells}
    assert planned
    assert not planned & set(known["cells"])
