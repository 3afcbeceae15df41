"""The section that ranks the hypotheses says what the rows say: the best, what is left, what the controls take away."""

from pathlib import Path

import plotly.graph_objects as go
import pytest

from dualscope.core.learning import IN_CONTEXT, Learning
from dualscope.findings.explained import sentences
from dualscope.report import write_report
from dualscope.report.charts.chart import Chart, Matrix, Note, Section
from dualscope.report.data import Data
from dualscope.report.sections import hypotheses, verdict
from dualscope.report.table import Number, Table
from dualscope.studies.run_folder.storage import RunFolder
from tests.report.made import make_run
from tests.report.test_sections import named

VECTOR, KERNEL, DISTILLED = Learning("task-vector"), Learning("kernel"), Learning("kv-distilled")
SHARES = {
    VECTOR: 0.6,
    VECTOR.under("random-labels"): 0.2,
    VECTOR.under("other-task"): -0.4,
    KERNEL: 0.3,
    KERNEL.under("random-labels"): 0.3,
    DISTILLED: 0.8,
    Learning("context-patch"): 1.0,
    IN_CONTEXT.under("redraw"): 0.9,
}
CHOICE = {
    "model": "tiny",
    "task": "sst2",
    "learner": "task-vector",
    "options": {},
    "settings": {"layer": 1},
    "examples": 60,
    "curve": [
        {"seed": 0, "accuracy": 0.5, "n": 60},
        {"layer": 0, "seed": 0, "accuracy": 0.6, "n": 60},
        {"layer": 1, "seed": 0, "accuracy": 0.75, "n": 60},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "rivals", tasks=["sst2"], seeds=4, explained=SHARES)
    RunFolder.open(folder).write_json("choices/made.json", CHOICE)
    return folder


@pytest.fixture(scope="module")
def section(run: Path) -> Section:
    found = hypotheses.section(Data([run]))
    assert found is not None
    return found


def test_words_name_the_best_what_is_left_and_what_the_controls_take_away(section: Section) -> None:
    (words,) = [item.text for item in section.items if isinstance(item, Note)]
    assert words.startswith("sst2: task-vector explains most, 0.6")
    assert "40% of what the context does to the predictions is left unexplained" in words
    assert "keeps 0.2" in words
    assert "under random-labels: that much is not the task" in words
    assert "In-context learning from other demonstrations explains 0.9" in words
    assert "kv-distilled explains 0.8" in words
    assert "context-patch" not in words  # an identity, never ranked


def test_the_ranking_draws_bars_controls_and_ceilings(section: Section) -> None:
    (chart,) = [item for item in section.items if isinstance(item, Chart)]
    (panel,) = chart.panels
    go.Figure(named(list(panel.data)), named(panel.layout))  # plotly checks every name and value
    drawn = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in panel.data}
    assert list(drawn["hypothesis"]) == ["task-vector", "kernel"]
    assert drawn["hypothesis"]["task-vector"] == pytest.approx(0.6, abs=0.03)
    assert drawn["under random-labels"]["kernel"] == pytest.approx(0.3, abs=0.03)
    assert set(drawn["under other-task"]) == {"task-vector"}
    assert set(drawn["ceiling"]) == {"kv-distilled", "in-context under redraw"}
    (bars,) = [trace for trace in panel.data if trace["name"] == "hypothesis"]
    assert all(reach > 0 for reach in bars["error_x"]["array"])
    places = {row[3]: row[2] for row in chart.table.rows}
    assert (places["task-vector"], places["kernel"], places["kv-distilled"]) == ("1", "2", "ceiling")


def test_the_choice_stands_beside_what_else_was_tried(section: Section) -> None:
    (chosen,) = [t for t in section.items if isinstance(t, Table) and "chosen" in t.columns]
    (row,) = chosen.rows
    assert "layer 1" in row
    there, before = (row[chosen.columns.index(name)] for name in ("accuracy there", "zero-shot there"))
    assert isinstance(there, Number)
    assert isinstance(before, Number)
    assert (there.value, before.value) == (0.75, 0.5)


def test_each_is_judged_by_its_own_controls(run: Path, tmp_path: Path) -> None:
    found = verdict.section(Data([run]))
    assert found is not None
    (matrix,) = [item for item in found.items if isinstance(item, Matrix)]
    answers = {learner: cells[0] for _, _, learner, cells in matrix.rows}
    assert answers["task-vector"] is not None
    assert answers["kernel"] is not None
    assert answers["gd"] is not None
    assert answers["task-vector"][0].text == "above the controls"
    assert answers["task-vector"][3] == "explained"
    assert answers["kernel"][0].text == "not above"
    assert answers["gd"][3] == ""
    charts = [item for item in found.items if isinstance(item, Chart)]
    assert not any("kernel" in (panel.title or "") for chart in charts for panel in chart.panels)
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "What explains it best?" in page


def test_the_terminal_says_it_in_a_sentence(run: Path) -> None:
    (source,) = Data([run]).sources
    (said,) = sentences(source.summary)
    assert said.startswith(
        "What explains most of in-context learning in tiny, 4 shots: sst2, task-vector 0.6"
    )
    assert "under random-labels 0.2" in said
    (alone,) = Data([make_run(run.parent / "plain", tasks=["sst2"], seeds=2)]).sources
    assert sentences(alone.summary) == []
