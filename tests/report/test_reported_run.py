"""Reading run folders: whole ones, stale ones, broken ones, and what is none."""

from pathlib import Path

import pyarrow as pa
import pytest

from dualscope.core.errors import InputError
from dualscope.core.spec import CellSpec, EpisodeSpec
from dualscope.findings import summary
from dualscope.report import write_report
from dualscope.report.report_data import Data
from dualscope.report.reported_run import ReportedRun
from tests.report.made import make_run


def test_a_stale_summary_is_not_believed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1)
    source = ReportedRun(run)
    fresh = source.summary
    summary.write(source.run, [{**row, "value": 0.123} for row in fresh], ["other", "cells"])
    assert ReportedRun(run).summary == fresh
    summary.write(source.run, [{**row, "value": 0.123} for row in fresh], source.run.stored())
    assert {row["value"] for row in ReportedRun(run).summary} == {0.123}


def test_a_damaged_summary_or_verdict_is_made_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1)
    source = ReportedRun(run)
    fresh = source.summary, source.verdicts
    summary.write(source.run, source.summary, source.run.stored())
    text = (run / summary.FILE).read_text()
    for content in (text[:-40], text.replace("0.", "1."), "", "\0\xff"):
        (run / summary.FILE).write_text(content)
        (run / "verdict.json").write_text(content)
        again = ReportedRun(run)
        assert (again.summary, again.verdicts) == fresh


def test_a_broken_cell_is_said_and_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd", "lcgd"])
    victim = sorted((run / "cells").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:100])
    text = write_report([run], tmp_path / "r.html").read_text()
    assert "1 failed cell" in text
    assert "unreadable" in text


def test_failures_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1)
    ReportedRun(run).run.fail("f" * 20, "out of memory <at last>\nTraceback ...")
    text = write_report([run], tmp_path / "r.html").read_text()
    assert "out of memory &lt;at last&gt;" in text


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        write_report([tmp_path], tmp_path / "r.html")
    (tmp_path / "study.yaml").write_text("tasks: [sst2]")
    with pytest.raises(InputError, match="nothing to report yet"):
        write_report([tmp_path], tmp_path / "r.html")
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1)
    with pytest.raises(InputError, match="is a folder"):
        write_report([run], tmp_path)


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name / "run", tasks=["sst2"], learners=["gd"], seeds=1) for name in "ab"]
    assert [subject.name for subject in Data(runs).subjects] == ["a/run: tiny", "b/run: tiny"]


def test_a_cell_without_single_heads_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart of heads asks every cell for every metric, and most have none."""
    source = ReportedRun(make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1))
    read: list[str] = []
    plain = source.run.rows

    def counted(cells: list[str]) -> pa.Table:
        read.extend(cells)
        return plain(cells)

    monkeypatch.setattr(source.run, "rows", counted)
    cells = list(source.cells)
    found = {cell: [source.heads(cell, metric) for metric in ("accuracy", "sim_am_delta")] for cell in cells}
    with_heads = {cell for cell in cells if plain([cell])["head"].null_count < plain([cell]).num_rows}
    assert {cell for cell, rows in found.items() if any(rows)} <= with_heads
    assert [cell for cell in read if cell not in with_heads] == [
        cell for cell in dict.fromkeys(read) if cell not in with_heads
    ]


def test_a_subject_asks_only_the_cells_of_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a page of many models takes longer with the square of their number; what it finds is the same."""
    for first, model in enumerate(("one", "two", "three")):
        make_run(tmp_path / "run", model=model, tasks=["sst2"], seeds=1, rates=(0.1, 0.2), first=1000 * first)
    data = Data([tmp_path / "run"])
    cells = data.sources[0].cells
    every = {s.name: [n for n, cell in cells.items() if s.in_setting(cell.columns())] for s in data.subjects}
    asked: list[CellSpec] = []
    plain = CellSpec.is_within

    def counted(cell: CellSpec, setting: EpisodeSpec) -> bool:
        asked.append(cell)
        return plain(cell, setting)

    monkeypatch.setattr(CellSpec, "is_within", counted)
    assert {subject.name: list(subject.cells) for subject in data.subjects} == every
    assert len(every) == 3
    assert all(every.values())
    assert len(asked) == len(cells)
