"""Figures for papers: of the width that was asked for, whole, with their fonts, and the same in Python."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import InputError, Run
from dualscope.report.charts import figures
from dualscope.report.report_data import Data
from tests.report.made import make_run

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def rich_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learners = ("gd", "lcgd", "gd/random-update", "gd/random-labels")
    return make_run(
        tmp_path_factory.mktemp("rich") / "run", ["sst2", "a-task-with-a-long-name"], learners=learners, seeds=2
    )


@pytest.mark.parametrize("width", [2.5, 3.3, 6.6])
def test_nothing_leaves_the_canvas(rich_run: Path, response_run: Path, width: float) -> None:
    names = {"response-scale", "response-geometry", "layers-sim_aou", "similarity-sim_aou", "accuracies"}
    seen: set[str] = set()
    for run in (rich_run, response_run):
        for chart in figures.charts_of(Data([run])):
            if chart.id in names - seen:
                seen.add(chart.id)
                figure = figures.drawn(chart, width)
                assert figure.get_size_inches()[0] == width
                assert figures._fits(figure), (chart.id, width)
    assert seen == names


def test_lines_are_named_at_their_ends_and_not_in_a_legend(rich_run: Path) -> None:
    figure = figures.figure_of(Data([rich_run]), "layers", 6.6)
    axes = figure.axes[0]
    said = {text.get_text().replace("\n", " ") for text in axes.texts}
    assert {"gd", "lcgd"} <= said
    legends = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert not legends & said
    figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    for below, above in pairwise(boxes):
        assert below.y1 <= above.y0 + 1.5


def test_many_panels_still_fit_a_page_and_long_titles_the_column(response_run: Path) -> None:
    chart = next(figures.charts_of(Data([response_run])))
    panels = [replace(panel, title="a-task-of-some-length: what the model answers") for panel in chart.panels * 2]
    figure = figures.drawn(replace(chart, panels=tuple(panels)), figures.COLUMN)
    assert len(figure.axes) == 8
    assert figure.get_size_inches()[1] <= 9.0
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        title = next(text for text in axes.get_children() if getattr(text, "get_text", str)() == panels[0].title)
        assert 0 <= title.get_window_extent(renderer).x0 < axes.bbox.x0, "it begins above the names of the rows"
        assert title.get_window_extent(renderer).x1 < figure.bbox.x1 - 3


def test_a_legend_says_once_what_looks_alike(rich_run: Path) -> None:
    figure = figures.figure_of(Data([rich_run]), "controls", figures.COLUMN)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named.count("a control") == 1
    assert set(named) == {"a control", "gd", "lcgd"}


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_one_figure_by_command(cli: Callable[..., Any], response_run: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"mine.{kind}"
    result = cli("report", response_run, "--figure", "response", "--width", "84mm", "--format", kind, "--out", out)
    assert result.code == 0, result.err
    content = out.read_bytes()
    if kind == "pdf":
        assert b"/FontFile2" in content  # the font itself
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert box is not None
        assert float(box[1]) == pytest.approx(84 / 25.4 * 72, abs=0.01)
    if kind == "svg":
        assert b"<text" not in content  # outlines: no font is needed to look at it
        assert b"<path" in content


def test_python_gives_the_same_figure(response_run: Path, tmp_path: Path) -> None:
    path = figures.write_figure([response_run], "response", 3.3, "png", tmp_path / "a.png")
    Run.open(response_run).plot("response", width=3.3).savefig(tmp_path / "b.png", dpi=300)
    from matplotlib.image import imread

    assert np.array_equal(imread(path), imread(tmp_path / "b.png"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--figure", "respons"], "did you mean response"),
        (["--figure", "partition-of-what"], "there is no such figure"),
        (["--figure", "response", "--width", "wide"], "--width wide: a width from 2 to 20 inches"),
        (["--figure", "response", "--width", "3000in"], "--width 3000in"),
    ],
)
def test_bad_input(cli: Callable[..., Any], response_run: Path, given: list[str], words: str) -> None:
    result = cli("report", response_run, *given)
    assert result.code == 2
    assert words in result.err


def test_every_listed_figure_has_a_chart(cli: Callable[..., Any], rich_run: Path, response_run: Path) -> None:
    listed = {line.split()[0] for line in cli("list", "figures").out.splitlines()[2:] if line.strip()}
    assert listed == set(figures.FIGURES)
    charts = {chart.id for run in (rich_run, response_run) for chart in figures.charts_of(Data([run]))}
    assert {chart for chart, _ in figures.FIGURES.values()} <= charts
    with pytest.raises(InputError) as refused:
        figures.chart_named(Data([rich_run]), "response")
    said = str(refused.value)
    assert "this run does not have what it shows" in said
    assert "--intervention relabel" in said, "the command that measures it"
    names = said.rpartition("It has: ")[2].rstrip(".").split(", ")
    assert "layers" in names
    assert set(names) < set(figures.FIGURES), "the names that `dualscope list figures` has, each once"
    assert len(set(names)) == len(names)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_figure_and_table_stand_in_two_columns(response_run: Path, tmp_path: Path) -> None:
    from dualscope.report.answer_table import write_latex

    figures.write_figure([response_run], "response", 3.3, "pdf", tmp_path / "response.pdf")
    write_latex([response_run], tmp_path / "answers.tex")
    (tmp_path / "paper.tex").write_text(
        r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}\setlength{\textwidth}{6.9in}"
        r"\setlength{\oddsidemargin}{-0.2in}\begin{document}"
        r"\begin{figure}\includegraphics{response}\caption{Response.}\end{figure}"
        r"\begin{table}\input{answers}\caption{Answers.}\end{table}Text.\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
