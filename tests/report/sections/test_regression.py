"""Figures of small transformers: each is drawn, and said how to read, as its experiment asks."""

import math
from pathlib import Path
from typing import Any

import pytest

from dualscope.regression import Results, VonOswald, save
from dualscope.regression.shipped import shipped_runs
from dualscope.report.charts.chart import Chart
from dualscope.report.data import Data
from dualscope.report.sections import regression

PROBED = "What a linear probe reads off each layer (share of variance)"
PEAK = 5000.0  # of least squares, where examples are as many as inputs


def drawn(place: Path) -> dict[str, Chart]:
    """title -> chart."""
    section = regression.section(Data([place]))
    assert section is not None
    return {item.title.split(": ", 1)[1]: item for item in section.items if isinstance(item, Chart)}


def figure(tmp_path: Path, x_name: str = "examples", marks: bool = False, **options: Any) -> Chart:
    results = Results("vonoswald")
    for x, value in ((1, 1.0), (20, PEAK), (40, 0.5)):
        results.over_seeds("least squares", "error", [value, value], seeds=[0, 1], x_name=x_name, x=x)
    if marks:
        results.add("least squares", "appears", 20, x_name=x_name, x=20, seed=0)
        options["marks"] = "appears"
    results.figure("error", "An older title")
    results.figure("error", "Error", **options)
    found = drawn(save(results, VonOswald(), tmp_path / "run", 1.0))
    assert "An older title" not in found
    return found["Error"]


def test_an_axis_ends_where_the_figure_says(tmp_path: Path) -> None:
    (panel,) = figure(tmp_path / "free").panels
    assert "range" not in panel.layout["yaxis"]
    (panel,) = figure(tmp_path / "bound", span=(0.0, 2.5)).panels
    assert panel.layout["yaxis"]["range"] == [0.0, 2.5]
    assert PEAK in panel.data[0]["y"]  # it leaves the figure, and stays in the data


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, regression.READS),
        ({"reads": "Higher is better."}, "Higher is better."),
        ({"x_name": "step"}, "Lower is learned more."),
        ({"x_name": "step", "marks": True}, f"Lower is learned more. {regression.STARS}"),
        (
            {"x_name": "step", "marks": True, "reads": "Higher is more."},
            f"Higher is more. {regression.STARS}",
        ),
    ],
)
def test_a_figure_is_read_as_it_says(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    assert figure(tmp_path, **options).reads == says


def test_what_is_shipped_can_be_read() -> None:
    trees = drawn(shipped_runs()["garg"])["Error against the number of examples"]
    for panel in trees.panels:
        low, high = panel.layout["yaxis"]["range"]
        mine = next(line for line in panel.data if line["name"] == "transformer")
        assert low <= min(mine["y"]) <= max(mine["y"]) <= high <= 3
    accuracy = drawn(shipped_runs()["momentum"])["In-context accuracy in training"]
    assert accuracy.reads.startswith("Higher")
    assert all(
        "lies on that of the algorithm" not in chart.reads
        for chart in drawn(shipped_runs()["momentum"]).values()
    )


def test_on_a_logarithmic_axis_only_what_is_exact_but_for_rounding_is_left_out() -> None:
    low = {}
    for place in shipped_runs().values():
        for title, chart in drawn(place).items():
            for panel in chart.panels:
                axis = panel.layout.get("yaxis", {})
                if axis.get("type") == "log" and "range" in axis:
                    values = [y for line in panel.data for y in line["y"] if y is not None and y > 0]
                    beneath = [y for y in values if y < 10 ** axis["range"][0]]
                    assert max(beneath, default=0) < 1e-7, (title, panel.title)
                    shown = min(y for y in values if y not in beneath)
                    assert math.log10(shown) < axis["range"][0] + 0.2, "an axis ends where lines do"
                    low[title, panel.title] = axis["range"][0], len(beneath)
    assert any(count for _, count in low.values())  # least squares without noise
    assert all(foot > -5 for foot, _ in low.values())


def test_between_whole_numbers_an_axis_has_no_ticks() -> None:
    panels = {panel.title: panel for panel in drawn(shipped_runs()["mesa"])[PROBED].panels}
    assert panels["1 linear layer"].layout["xaxis"]["dtick"] == 1
    assert "dtick" not in panels["GPT-2, 6 layers"].layout["xaxis"]
    (noises,) = drawn(shipped_runs()["akyurek"])["Distance from the closed forms over noise"].panels
    assert "dtick" not in noises.layout["xaxis"]
