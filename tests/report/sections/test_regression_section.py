"""Figures of small transformers: each is drawn, and said how to read, as its experiment asks."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dualscope.regression import Results, VonOswald, save
from dualscope.regression.results_folder import claims, shipped_runs
from dualscope.report.charts.chart import Chart
from dualscope.report.page import write_report
from dualscope.report.report_data import Data
from dualscope.report.sections import provenance_section as provenance
from dualscope.report.sections import regression_section as regression
from dualscope.report.table import Number, Table

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
        ({"x_name": "step", "marks": True, "reads": "Higher is more."}, f"Higher is more. {regression.STARS}"),
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
        "lies on that of the algorithm" not in chart.reads for chart in drawn(shipped_runs()["momentum"]).values()
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


def test_of_several_runs_each_has_a_part_of_its_own_and_the_first_table_says_what_holds(tmp_path: Path) -> None:
    places = []
    for name, holds in (("first", [True, False]), ("second", [True]), ("third", [])):
        results = Results("vonoswald")
        results.over_seeds("gd", "error", [0.1, 0.2], seeds=[0, 1], x_name="step", x=1)
        results.figure("error", "Error")
        for number, held in enumerate(holds):
            results.check(f"claim {number}", "0.1", held)
        places.append(save(results, VonOswald(), tmp_path / name, 90.0, quick=name == "second"))
    whole = regression.section(Data(places))
    assert whole is not None
    (overview,) = whole.items
    assert isinstance(overview, Table)
    found = [[entry.text if isinstance(entry, Number) else entry for entry in row] for row in overview.rows]
    assert found == [
        ["first", "1 of 2", "3", "1.5"],
        ["second", "quick: not checked", "3", "1.5"],
        ["third", "–", "3", "1.5"],
    ]
    assert [part.title for part in whole.parts] == ["first", "second", "third"]
    assert all(
        part.about == "Von Oswald et al. 2023: one trained linear layer is a step of GD; deeper ones are GD++."
        for part in whole.parts
    )
    assert [chart.title for chart in whole.charts()] == ["Error"] * 3
    ids = [chart.id for chart in whole.charts()] + [part.id for part in whole.parts]
    assert len({*ids}) == len(ids)


def test_one_run_is_one_section_whose_titles_name_it(tmp_path: Path) -> None:
    results = Results("vonoswald")
    results.over_seeds("gd", "error", [0.1, 0.2], seeds=[0, 1], x_name="step", x=1)
    results.figure("error", "Error")
    section = regression.section(Data([save(results, VonOswald(), tmp_path / "run", 1.0)]))
    assert section is not None
    assert not section.parts
    assert [chart.title for chart in section.charts()] == ["run: Error"]
    assert section.about.endswith("deeper ones are GD++.")


def test_a_run_of_an_earlier_version_has_no_claim(tmp_path: Path) -> None:
    results = Results("vonoswald")
    results.over_seeds("gd", "error", [0.1, 0.2], seeds=[0, 1])
    place = save(results, VonOswald(), tmp_path / "run", 1.0)
    told = json.loads((place / "provenance.json").read_text())
    assert told.pop("claim") == claims()["vonoswald"]
    (place / "provenance.json").write_text(json.dumps(told))
    section = regression.section(Data([place]))
    assert section is not None
    assert section.about.endswith("says nothing about pretrained language models.")


def test_every_part_is_reached_from_the_navigation_and_says_where_it_is_from(tmp_path: Path) -> None:
    text = write_report(list(shipped_runs().values()), tmp_path / "r.html").read_text()
    navigation = text[text.index("<nav") : text.index("</nav>")]
    reached = re.findall(r'href="#([^"]+)"', navigation)
    assert sum(name.startswith("regression-") for name in reached) == len(shipped_runs())
    for name in reached:
        assert f'<section id="{name}"' in text
    assert f"In-context regression: {len(shipped_runs())} experiments" in text
    told = json.loads((shipped_runs()["ahn"] / "provenance.json").read_text())
    assert f"{told['machine']}, {told['date']}" in text[text.index('<section id="provenance"') :]


def test_two_folders_of_one_experiment_keep_the_names_that_tell_them_apart(tmp_path: Path) -> None:
    for place in ("x", "y"):
        shutil.copytree(shipped_runs()["ahn"], tmp_path / place / "ahn")
    section = regression.section(Data([tmp_path / "x" / "ahn", tmp_path / "y" / "ahn"]))
    assert section is not None
    assert [part.title for part in section.parts] == ["x/ahn", "y/ahn"]


def test_a_run_of_ones_own_says_what_it_was_computed_on(tmp_path: Path) -> None:
    results = Results("vonoswald")
    results.over_seeds("gd", "error", [0.1, 0.2], seeds=[0, 1])
    (source,) = Data([save(results, VonOswald(), tmp_path / "run", 1.0)]).sources
    assert source.computed_on == "device cpu"


@pytest.mark.parametrize("damage", [None, 5, "text", [], {}, [None], [{}], {"a": None}], ids=repr)
def test_what_is_damaged_in_provenance_is_left_out(tmp_path: Path, damage: object) -> None:
    place = tmp_path / "ahn"
    shutil.copytree(shipped_runs()["ahn"], place)
    whole = json.loads((place / "provenance.json").read_text())
    for field in whole:
        (place / "provenance.json").write_text(json.dumps({**whole, field: damage}))
        data = Data([place])
        section = regression.section(data)
        assert section is not None
        assert section.charts(), field
        assert provenance.section(data) is not None
