"""``--per-head``: rows of single heads, and their figures in the report."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from dualscope.report.charts.chart import Tabs
from dualscope.report.report_data import Data
from dualscope.report.sections.attention_section import single_heads
from dualscope.studies.run_folder.storage import RunFolder


@pytest.fixture
def ran(
    cli: Callable[..., Any], model_folder: str, task_files: tuple[str, str], tmp_path: Path
) -> Callable[[str], Path]:
    """The folder of a small run with one more option."""

    def run(option: str) -> Path:
        small = {"--seeds": "2", "--shots": "4", "--queries": "6", "--lr": "0.1", "--jobs": "1"}
        plain = {"--variant": "trained", "--learner": "gd", "--device": "cpu", "--out": str(tmp_path / "run")}
        subject = {"--model": model_folder, "--task": task_files[0]}
        result = cli("run", *chain(*{**subject, **small, **plain}.items()), option)
        assert result.code == 0, result.err
        return tmp_path / "run"

    return run


def test_a_run_with_heads(ran: Callable[[str], Path]) -> None:
    out = ran("--per-head")
    rows = [row for row in RunFolder.open(out).rows().to_pylist() if row["head"] is not None]
    of = {
        metric: [row for row in rows if row["metric"] == metric]
        for metric in ("induction_score", "indirect_effect", "sim_am", "sim_am_delta")
    }
    assert all(of.values())
    for metric in ("induction_score", "indirect_effect"):
        assert {(row["learner"], row["control"]) for row in of[metric]} == {("in-context", None)}
        assert {row["seed"] for row in of[metric]} == {0, 1}
    section = single_heads(Data([out]))
    assert section is not None
    (tabs,) = section.items
    assert isinstance(tabs, Tabs)
    drawn = (("indirect_effect", "in-context"), ("induction_score", "in-context"), ("sim_am_delta", "gd"))
    for (_, chart), (metric, learner) in zip(tabs.charts, drawn, strict=True):
        (grid,) = chart.panels[0].data
        for layer, line in enumerate(grid["z"]):
            for head, shown in enumerate(line):
                own = [
                    row["value"]
                    for row in of[metric]
                    if (row["layer"], row["head"], row["learner"]) == (layer, head, learner)
                ]
                assert shown == pytest.approx(fmean(own), rel=1e-4, abs=1e-4)
        assert len(chart.table.rows) == sum(map(len, grid["z"]))
    page = (out / "report.html").read_text()
    assert 'id="heads"' in page
    assert "heads-indirect_effect" in page


def test_a_run_without_heads_has_no_such_section(ran: Callable[[str], Path]) -> None:
    out = ran("--no-report")
    assert single_heads(Data([out])) is None
    assert all(row["head"] is None for row in RunFolder.open(out).rows().to_pylist())
