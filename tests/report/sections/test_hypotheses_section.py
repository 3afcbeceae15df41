"""The section that ranks the hypotheses says what the rows say: the best, what is left, what the controls take away."""

from math import nan
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from dualscope.core.rows import COLUMNS
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.findings.ranking import sentences
from dualscope.report import write_report
from dualscope.report.charts.chart import Chart, Listing, Matrix, Section
from dualscope.report.report_data import Data
from dualscope.report.sections import hypotheses_section as hypotheses
from dualscope.report.sections import verdict_section as verdict
from dualscope.report.sections.hypotheses_section import _choice_panel
from dualscope.report.table import Number, Table
from dualscope.studies.run_folder.storage import RunFolder
from tests.report.made import _queries, make_run
from tests.report.test_sections import named

VECTOR, KERNEL, DISTILLED = LearnerSpec("task-vector"), LearnerSpec("kernel"), LearnerSpec("kv-distilled")
SHARES = {
    VECTOR: 0.6,
    VECTOR.under("random-labels"): 0.2,
    VECTOR.under("other-task"): -0.4,
    KERNEL: 0.3,
    KERNEL.under("random-labels"): 0.3,
    DISTILLED: 0.8,
    LearnerSpec("context-patch"): 1.0,
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
    folder = make_run(tmp_path_factory.mktemp("runs") / "rivals", tasks=["sst2"], seeds=5, explained=SHARES)
    RunFolder.open(folder).write_json("choices/made.json", CHOICE)
    return folder


@pytest.fixture(scope="module")
def section(run: Path) -> Section:
    found = hypotheses.section(Data([run]))
    assert found is not None
    return found


def said_of(section: Section) -> str:
    """What the section says of a run with one task."""
    (listing,) = [item for item in section.items if isinstance(item, Listing)]
    ((_, words),) = listing.lines
    return words


def test_words_name_the_best_what_is_left_and_what_the_controls_take_away(section: Section) -> None:
    words = said_of(section)
    assert words.startswith("sst2: task-vector explains most, 0.6")
    assert "40% of the context's effect on the predictions is left unexplained" in words
    assert "keeps 0.2" in words
    assert "under random-labels: that much is not the task" in words
    assert "In-context learning from other demonstrations explains 0.9" in words
    assert "kv-distilled explains 0.8" in words
    assert "context-patch" not in words  # an identity, never ranked


def words_of(folder: Path, shares: dict[LearnerSpec, float], **settings: Any) -> str:
    """What the section says of a run with one task."""
    found = hypotheses.section(Data([make_run(folder, tasks=["sst2"], seeds=5, explained=shares, **settings)]))
    assert found is not None
    return said_of(found)


def test_where_no_hypothesis_explains_anything_no_control_takes_it_away(tmp_path: Path) -> None:
    below = {VECTOR: -0.3, VECTOR.under("random-labels"): -0.1, KERNEL: -0.5, DISTILLED: 0.4}
    words = words_of(tmp_path / "below", below)
    assert words.startswith("sst2: no hypothesis explains anything; the nearest is task-vector")
    assert "explains most" not in words
    assert "Under" not in words
    assert "controls" not in words
    assert "kv-distilled explains 0.4" in words
    (source,) = Data([tmp_path / "below"]).sources
    (said,) = sentences(source.summary)
    assert ": sst2, no hypothesis (task-vector has -0.3" in said
    assert "under random-labels" not in said


def test_what_left_no_predictions_is_not_nothing_to_explain(tmp_path: Path) -> None:
    nothing = float("nan")
    lost = words_of(tmp_path / "lost", {VECTOR: nothing, KERNEL: nothing, DISTILLED: 0.4})
    assert lost == "sst2: nothing can be said of task-vector, kernel: no finite predictions are left."
    empty = words_of(tmp_path / "empty", {VECTOR: nothing, KERNEL: nothing, DISTILLED: nothing})
    assert empty.startswith("sst2: nothing to explain")


def test_one_seed_and_no_controls(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tasks=["sst2"], seeds=1, explained={VECTOR: 0.6, KERNEL: 0.3})
    found = hypotheses.section(Data([folder]))
    assert found is not None
    words = said_of(found)
    assert "task-vector explains most" in words
    assert "nder" not in words  # under nothing, and no other demonstrations


def test_the_share_by_shots_is_of_one_setting(tmp_path: Path) -> None:
    """Labels, rates and what is asked are those of the other charts; only the shots differ."""
    folder = tmp_path / "run"
    both = {VECTOR: 0.6, KERNEL: 0.3}
    for shots in (2, 8):
        make_run(folder, ["sst2"], seeds=2, explained=both, shots=shots, demo_labels=("gold", "flipped"), first=shots)
    found = hypotheses.section(Data([folder]))
    assert found is not None
    (chart,) = [item for item in found.items if isinstance(item, Chart) and item.id == "explained-by-shots"]
    (panel,) = chart.panels
    assert {trace["name"]: trace["x"] for trace in panel.data} == {"task-vector": [2, 8], "kernel": [2, 8]}


def test_one_learner_at_several_rates_is_told_apart(tmp_path: Path) -> None:
    slow, fast = (LearnerSpec("gd-all", lr=rate) for rate in (0.1, 0.3))
    run = make_run(tmp_path / "run", tasks=["sst2"], seeds=2, learners=(), explained={slow: 0.2, fast: 0.5})
    (source,) = Data([run]).sources
    (said,) = sentences(source.summary)
    assert "gd-all lr=0.3 0.5" in said


def test_the_ranking_draws_bars_controls_and_ceilings(section: Section) -> None:
    (chart,) = [item for item in section.items if isinstance(item, Chart) and item.id == "explained"]
    (panel,) = chart.panels
    go.Figure(named(list(panel.data)), named(panel.layout))  # plotly checks every name and value
    drawn = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in panel.data}
    assert list(drawn["hypothesis"]) == ["task-vector", "kernel"]
    assert drawn["hypothesis"]["task-vector"] == pytest.approx(0.6, abs=0.03)
    assert drawn["under random-labels"]["kernel"] == pytest.approx(0.3, abs=0.03)
    assert set(drawn["under other-task"]) == {"task-vector"}
    assert set(drawn["ceiling"]) == {"kv-distilled", "in-context/redraw"}
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

    assert row[chosen.columns.index("tried")] == "2"


def test_the_curve_of_a_choice_is_drawn(section: Section) -> None:
    (chart,) = [item for item in section.items if isinstance(item, Chart) and item.id == "choices"]
    (panel,) = chart.panels
    go.Figure(named(list(panel.data)), named(panel.layout))
    drawn = {trace["name"]: (trace["x"], trace["y"]) for trace in panel.data}
    assert drawn["tried"] == ([0.0, 1.0], [0.6, 0.75])
    assert drawn["chosen"] == ([1], [0.75])
    assert drawn["zero-shot"][1] == [0.5, 0.5]
    assert len(chart.table.rows) == 3


def test_a_curve_of_many_settings_is_drawn_against_the_one_with_most_values() -> None:
    curve = [
        {"lr": rate, "loss": loss, "seed": seed, "accuracy": rate / 10 + 0.1 * (loss == "label") + 0.02 * seed}
        for rate in (0.01, 0.1, 1.0)
        for loss in ("all", "label")
        for seed in (0, 1)
    ]
    panel = _choice_panel(CHOICE | {"curve": curve, "settings": {"lr": 1.0, "loss": "label"}})
    assert panel is not None
    assert panel.layout["xaxis"]["type"] == "log"
    tried, mark = panel.data  # nothing is known of the model before
    assert tried["x"] == [0.01, 0.1, 1.0]
    assert tried["y"] == pytest.approx([0.111, 0.12, 0.21])
    assert (mark["x"], mark["y"]) == ([1.0], pytest.approx([0.21]))
    fitted = [{"lr": rate, "seed": 0, "held_out": loss} for rate, loss in ((0.1, 0.5), (0.3, 0.2))]
    losses = _choice_panel(CHOICE | {"curve": fitted, "settings": {"lr": 0.3}})
    assert losses is not None
    assert [trace["y"] for trace in losses.data] == [[0.5, 0.2], [0.2]]
    assert losses.layout["yaxis"]["title"]["text"] == "loss held out"
    assert _choice_panel(CHOICE | {"curve": [], "settings": {}}) is None


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
    assert said.startswith("What explains most of in-context learning in tiny, 4 shots: sst2, task-vector 0.6")
    assert "under random-labels 0.2" in said
    (alone,) = Data([make_run(run.parent / "plain", tasks=["sst2"], seeds=2)]).sources
    assert sentences(alone.summary) == []


def test_every_seed_is_drawn_and_written(section: Section) -> None:
    (chart,) = [item for item in section.items if isinstance(item, Chart) and item.id == "explained"]
    (dots,) = [trace for trace in chart.panels[0].data if trace["name"] == "each seed"]
    assert dots["y"].count("task-vector") == 5
    drawn = [x for x, y in zip(dots["x"], dots["y"], strict=True) if y == "task-vector"]
    (row,) = [row for row in chart.table.rows if row[3] == "task-vector"]
    assert row[chart.table.columns.index("each seed")] == ", ".join(f"{x:.2f}" for x in drawn)


def test_answers_without_content_stand_in_a_table_where_they_were_measured(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tasks=["sst2"], seeds=2, explained={VECTOR: 0.6, KERNEL: 0.3})

    def tables() -> list[Table]:
        found = hypotheses.section(Data([folder]))
        assert found is not None
        return [item for item in found.items if isinstance(item, Table) and "answers" in item.columns]

    assert tables() == []
    run = RunFolder.open(folder)
    for seed in range(2):
        base: dict[str, Any] = dict.fromkeys(COLUMNS) | {
            "model": "tiny", "variant": "trained", "task": "sst2", "seed": seed, "order": 0, "shots": 4,
            "shots_used": 4, "learner": "in-context", "role": "reference", "demo_labels": "gold", "corrupt": "both",
            "options": "{}", "n": 1, "low": nan, "high": nan, "reference": "uniform",
        }  # fmt: skip
        rows: Any = [base | {"metric": "explained_raw_null", "value": 0.1 + 0.1 * seed}]
        run.store(f"{4096 + seed:020x}", rows, _queries({"query": ["a"], "label": [0], "prediction": [0]}))
    ((row,),) = [table.rows for table in tables()]
    assert row[:3] == ("tiny", "sst2", "uniform")
    assert isinstance(row[4], Number)
    assert row[4].value == pytest.approx(0.15)
    assert row[4].each == pytest.approx((0.1, 0.2))
