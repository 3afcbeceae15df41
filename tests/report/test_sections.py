"""What the sections say is what the rows say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import SHARE
from dualscope.metrics import bounds_of
from dualscope.report.charts.chart import Browser, Chart, Note, Section, Tabs
from dualscope.report.charts.curves import Line, combine, layer_lines
from dualscope.report.charts.drawing import colours
from dualscope.report.charts.palette import Palette
from dualscope.report.report_data import Data
from dualscope.report.sections import gradients_section as gradients
from dualscope.report.sections import plugin_metrics_section as plugin_metrics
from dualscope.report.sections import sections_of
from dualscope.report.sections import sweeps_section as sweeps
from dualscope.report.sections.similarity_section import Marks
from tests.report.made import make_run, usual


def all_sections(*runs: Path) -> dict[str, Section]:
    return {section.id: section for section in sections_of(Data(runs))}


def named(value: object) -> object:
    """Colours' names made colours, as the page does."""
    if isinstance(value, str) and value.startswith("@"):
        return colours()[value[1:]]
    if isinstance(value, dict):
        return {key: named(part) for key, part in value.items()}
    return [named(part) for part in value] if isinstance(value, list) else value


def test_every_section_is_there_and_every_plot_is_valid(plain_run: Path) -> None:
    sections = all_sections(plain_run)
    assert list(sections) == [
        *("verdict", "layers", "accuracy", "prediction", "similarity", "controls", "gradients", "queries"),
        *("published", "provenance"),
    ]
    missing = sections["provenance"].items[0]
    assert isinstance(missing, Note)
    for name in ("alpha", "Kendall's tau", "learning rate", "signal"):
        assert (name in missing.text) is (name != "signal"), missing.text
    charts = [chart for section in sections.values() for chart in section.charts()]
    assert len({chart.id for chart in charts}) == len(charts)
    for chart in charts:
        assert chart.shows
        assert chart.reads
        assert chart.table.rows
        for panel in chart.panels:
            go.Figure(named(list(panel.data)), named(panel.layout))  # plotly checks every name and value


def test_built_in_metrics_are_not_the_users_own(plain_run: Path) -> None:
    assert plugin_metrics.section(Data([plain_run])) is None


def test_runs_stand_side_by_side(plain_run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", model="second", tasks=["mr"])
    sections = all_sections(plain_run, other)
    chart = next(chart for chart in sections["accuracy"].charts() if chart.id == "accuracies")
    assert [panel.title for panel in chart.panels] == ["plain: tiny", "other: second"]
    assert chart.panels[0].layout["xaxis"]["range"] == chart.panels[1].layout["xaxis"]["range"]
    assert {row[0] for row in chart.table.rows} == {"plain: tiny", "other: second"}


def test_zero_shot_is_there_whatever_the_demonstrations_options(tmp_path: Path) -> None:
    """The options of demonstrations are not zero-shot's, yet it is where every learner of them starts."""
    shown = {"balanced": True, "gd_demonstrations": "all"}
    (subject,) = Data([make_run(tmp_path / "run", settings=shown)]).subjects
    assert subject.learners[:3] == ["zero-shot", "in-context", "gd"]
    assert subject.get("sst2", "zero-shot", "accuracy") is not None
    assert {cell.learning.name for cell in subject.cells.values()} >= {"zero-shot", "in-context", "gd"}


def test_best_is_marked_and_ties_are_ties(tmp_path: Path) -> None:
    clear = Data([make_run(tmp_path / "clear", seeds=3)]).subjects[0]
    assert Marks(clear).of("sst2", "sim_aou") == {"gd": "best"}
    same = make_run(tmp_path / "same", level=lambda variant, learner: 0.3, noise=0.2)
    assert set(Marks(Data([same]).subjects[0]).of("sst2", "sim_aou").values()) == {"tie"}


def test_intervals_over_seeds() -> None:
    rng = np.random.default_rng(0)
    parts = [(v, v - 0.1, v + 0.1) for v in rng.normal(0.5, 0.2, 5)]
    mean, low, high = combine(parts)
    values = np.array([v for v, *_ in parts])
    by_seeds, by_queries = values.var(ddof=1) / 5, (0.1 / 1.96) ** 2
    assert mean == pytest.approx(values.mean())
    reach = np.sqrt(student.ppf(0.975, 4) ** 2 * by_seeds + norm.ppf(0.975) ** 2 * by_queries)
    assert (high - low) / 2 == pytest.approx(reach)
    assert np.isnan(combine([(np.nan, np.nan, np.nan)])[0])
    assert combine([(np.inf, np.inf, np.inf), (np.inf, np.inf, np.inf)])[0] == np.inf


def test_intervals_end_where_their_numbers_do(plain_run: Path) -> None:
    """All accuracies are 1 there, give or take .05 in every seed."""
    subject = Data([plain_run]).subjects[0]
    for row in subject.rows:
        least, most = bounds_of(row["metric"])
        assert least <= row["low"] <= row["high"] <= most, row
    assert max(row["high"] for row in subject.rows if row["metric"] == "accuracy") == 1.0
    near = [(v, v - 0.1, v + 0.1) for v in (0.9, 1.0, 0.95)]
    assert combine(near)[2] > 1 == combine(near, SHARE)[2]
    assert Line.over_seeds({0: {i: [one] for i, one in enumerate(near)}}, SHARE).highs == (1.0,)


def test_orders_are_no_further_seeds_of_a_layers_line() -> None:
    one = Line.over_seeds({0: {0: [(0.4, 0.3, 0.5)], 1: [(0.6, 0.5, 0.7)]}})
    orders = Line.over_seeds({0: {0: [(0.3, 0.2, 0.4), (0.5, 0.4, 0.6)], 1: [(0.6, 0.5, 0.7), (0.6, 0.5, 0.7)]}})
    assert orders.values == pytest.approx(one.values)
    assert orders.lows == pytest.approx(one.lows)


def test_layers_are_means_over_seeds(plain_run: Path) -> None:
    subject = Data([plain_run]).subjects[0]
    line = layer_lines(subject)["sst2", "trained", "gd", "sim_aou", "in-context"]
    row = subject.get("sst2", "gd", "sim_aou")
    assert row is not None
    assert line.layers == (0, 1, 2)
    assert line.values[0] == pytest.approx(row["value"])


def test_gradients_are_of_one_episode(plain_run: Path) -> None:
    section = gradients.section(Data([plain_run]))
    assert section is not None
    chart = section.charts()[0]
    grid = chart.panels[0].data[0]["z"]
    assert np.shape(grid) == (3, 4)
    assert grid[0] == pytest.approx(np.log10([0.1, 0.2, 0.3, 0.4]), abs=1e-3)


def test_what_a_study_varies_is_shown(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        tasks=["sst2"],
        learners=["gd"],
        rates=[0.1, 1.0],
        demo_labels=["gold", "flipped"],
        orders=[0, 1],
    )
    section = sweeps.section(Data([run]))
    assert section is not None
    tabs = {item.id: item for item in section.items if isinstance(item, Tabs)}
    assert set(tabs) == {"axis-lr-tabs", "axis-labels-tabs"}
    rates = tabs["axis-lr-tabs"].charts[0][1]
    assert rates.panels[0].data[0]["x"] == [0.1, 1.0]
    labels = tabs["axis-labels-tabs"].charts[0][1]
    assert labels.panels[0].data[0]["x"] == ["gold", "flipped (both)"]
    orders = next(item for item in section.items if isinstance(item, Chart))
    assert len(orders.panels[0].data[0]["x"]) == 5 * 2  # seeds x orders, at the rate shown


def test_several_rates_leave_one_in_the_other_charts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], rates=[0.1, 1.0])
    subject = Data([run]).subjects[0]
    assert subject.several_rates
    assert {cell.learning.lr for cell in subject.cells.values() if cell.learning.name == "gd"} == {0.1}


def test_learners_under_test_are_no_controls(plain_run: Path) -> None:
    assert Data([plain_run]).subjects[0].gradient_learners == ["gd", "lcgd"]
    assert usual("trained", "gd") > usual("untrained", "gd")


def test_every_variant_has_a_mark_and_a_dash_of_its_own() -> None:
    from dualscope.core.words import VARIANTS
    from dualscope.report.charts.chart import SHAPES
    from dualscope.report.charts.drawing import DASHES as DRAWN
    from dualscope.report.charts.drawing import MARKERS
    from dualscope.report.charts.palette import DASHES, OTHERS, SYMBOLS

    assert set(VARIANTS) == set(DASHES) == set(SYMBOLS)
    assert len(set(DASHES.values())) == len(set(SYMBOLS.values())) == len(VARIANTS)
    assert set(DASHES.values()) <= set(DRAWN)
    assert {symbol.removesuffix("-open") for symbol in SYMBOLS.values()} <= set(MARKERS)
    assert set(OTHERS) <= set(MARKERS) & set(SHAPES)
    # Every deciding control of a full study has a mark of its own, in pages and in files.
    assert len({MARKERS[symbol] for symbol in OTHERS}) == len(OTHERS) >= 10
    assert "diamond" not in OTHERS  # the ceiling's


def test_two_options_of_one_learner_are_told_apart_everywhere(tmp_path: Path) -> None:
    """Colour and mark, in dots and in lines; plain gd keeps the colour that it has on every page."""
    palette = Palette([LearnerSpec("gd"), LearnerSpec.of("gd", {"epochs": 3}), LearnerSpec("lcgd")])
    assert palette.colour("gd") == "@blue"
    assert len({palette.colour(label) for label in ("gd", "gd[epochs=3]", "lcgd")}) == 3
    assert palette.mark("gd") != palette.mark("gd[epochs=3]")
    many = [LearnerSpec.of("gd", {"epochs": n}) for n in range(1, 30)]
    styles = Palette(many)
    assert len({(styles.colour(one.label), styles.mark(one.label)) for one in many[:12]}) == 12


def test_hover_says_the_interval(plain_run: Path) -> None:
    sections = all_sections(plain_run)
    for name in ("accuracies", "layers-sim_aou"):
        chart = next(c for s in sections.values() for c in s.charts() if c.id == name)
        trace = next(t for t in chart.panels[0].data if t["name"] == "gd")
        assert "%{customdata}" in trace["hovertemplate"]
        assert all("[" in said for said in trace["customdata"])


def test_layers_draw_every_deciding_control_and_say_where_the_learner_is_clear(tmp_path: Path) -> None:
    def level(variant: str, learner: str) -> float:
        return 0.9 if learner == "zero-shot-offset" else usual(variant, learner)

    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd", "zero-shot-offset"], level=level)
    chart = next(c for c in all_sections(run)["layers"].charts() if c.id == "layers-sim_aou")
    names = [trace["name"] for trace in chart.panels[0].data]
    assert "the query moved to its position in context" in names
    assert "No layer is clear for `gd` on sst2 (over all layers: not above)." in chart.reads
    clear = make_run(tmp_path / "clear", tasks=["sst2"], learners=["gd"])
    chart = next(c for c in all_sections(clear)["layers"].charts() if c.id == "layers-sim_aou")
    assert "Layers 0, 1, 2 are clear for `gd` on sst2 (over all layers: above the controls)." in chart.reads


def test_gradient_charts_are_named_by_task(plain_run: Path) -> None:
    charts = all_sections(plain_run)["gradients"].charts()
    assert [chart.id for chart in charts] == ["gradients-sst2", "gradients-subj"]


def test_models_are_overlaid_and_drawn_against_their_size(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"m{n}", model=f"m{n}", layers=n, parameters=10**n) for n in (3, 6)]
    sections = all_sections(*runs)
    layers, sizes = sections["compared"].charts()
    assert [panel.title for panel in layers.panels] == ["sst2", "subj"]
    assert [trace["name"] for trace in layers.panels[0].data] == ["m3: m3: gd", "m6: m6: gd"]
    assert [trace["x"][-1] for trace in layers.panels[0].data] == [1.0, 1.0]
    assert sizes.panels[0].data[0]["x"] == [1000, 1000000]
    assert "compared" not in all_sections(runs[0])


def test_checkpoints_are_drawn_against_their_step_and_sizes_by_the_last(tmp_path: Path) -> None:
    """Two trainings of different size; one has three checkpoints, the untrained among them."""

    def risen(step: int) -> Callable[[str, str], float]:
        return lambda variant, learner: step / 4000 if variant == "trained" else 0.0

    told = [("big", 900, 0), ("big", 900, 2000), ("big", 900, 500), ("small", 40, 500)]
    runs = [
        make_run(
            tmp_path / f"{family}-{step}",
            tasks=["sst2"],
            model=f"{family}@step{step}",
            parameters=size,
            notes={"family": family, "step": str(step)},
            level=risen(step),
            noise=0.0,
        )
        for family, size, step in told
    ]
    _, steps, sizes = all_sections(*runs)["compared"].charts()
    assert (steps.id, sizes.id) == ("compared-steps", "compared-sizes")
    assert [panel.title.split()[0] for panel in steps.panels] == ["sim_aou", "accuracy", "accuracy", "accuracy"]
    (line,) = steps.panels[0].data  # of `small` there is one checkpoint: no line
    assert (line["name"], line["x"]) == ("sst2", [250.0, 500, 2000])
    assert line["y"] == pytest.approx([0.0, 0.125, 0.5], abs=1e-3)
    assert steps.panels[0].layout["xaxis"]["ticktext"] == ["0", "500", "2,000"]
    (line,) = sizes.panels[0].data
    assert line["x"] == [40, 900]
    assert line["y"][1] == pytest.approx(0.5, abs=1e-3)
    assert [row[3] for row in steps.table.rows[:3]] == ["0", "500", "2,000"]


def test_queries_have_their_texts_and_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], texts=True, seeds=2)
    (browser,) = (item for item in all_sections(run)["queries"].items if isinstance(item, Browser))
    first = browser.sets[0]
    assert (first["task"], first["seed"], first["labels"]) == ("sst2", 0, ["Negative", "Positive"])
    assert [learner["name"] for learner in first["learners"]] == ["zero-shot", "in-context", "gd", "lcgd"]
    assert browser.texts[first["texts"]][3] == "sst2 asks evaluation:3"
    assert len(browser.texts) == 1  # once, whatever the number of seeds
    assert first["learners"][1]["prediction"] == first["gold"]
