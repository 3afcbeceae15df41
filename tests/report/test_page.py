"""The file: one, whole, escaped, not too large, and the command that writes it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.report import write_figures, write_report
from tests.report.made import make_run

SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)


def test_nothing_is_fetched(page: Path) -> None:
    text = page.read_text()
    assert len(SCRIPT.findall(text)) == 2  # plotly, once, and ours
    ours = SCRIPT.sub("", text)
    assert not re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', ours)
    assert "@import" not in ours
    assert "url(" not in ours


def test_data_in_the_page_cannot_end_its_element(evil_run: Path, tmp_path: Path) -> None:
    text = write_report([evil_run], tmp_path / "r.html").read_text()
    assert "window.stolen" in text  # it is shown
    assert "<script>window" not in text
    assert "<img" not in text
    assert "<b>Negative" not in text
    plots = re.search(r'<script type="application/json" id="plots">(.*?)</script>', text, re.DOTALL)
    assert plots is not None
    json.loads(plots.group(1))
    assert "<" not in plots.group(1)


@pytest.mark.slow
def test_500_cells_stay_small(tmp_path: Path) -> None:
    tasks = [f"task-{i}" for i in range(6)]
    variants = ("trained", "untrained", "trained-embeddings")
    learners = ("gd", "lcgd", "lcgd-clipped", "lcgd-matched", "gd/random-update", "gd/random-labels", "gd/other-task")
    run = make_run(tmp_path / "run", tasks, variants, learners, seeds=4, layers=24, shots=32, queries=20)
    assert len(list((run / "cells").iterdir())) > 500
    assert write_report([run], tmp_path / "r.html").stat().st_size < 12e6


def test_command(plain_run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(plain_run), "--out", str(tmp_path / "deep" / "r.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "deep" / "r.html").read_text().startswith("<!doctype html>")


def test_figures_for_papers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], seeds=1, orders=[0, 1], rates=[0.1, 1.0])
    written = write_figures([run], tmp_path / "figures")
    names = {path.name for path in written}
    wanted = ("controls-beside.pdf", "layers-sim_aou.svg", "gradients-sst2.pdf", "accuracies.svg", "orders.pdf")
    assert names.issuperset((*wanted, "axis-lr-sim_aou.svg"))
    assert all(path.read_bytes()[:5] == b"%PDF-" for path in written if path.suffix == ".pdf")
    svg = (tmp_path / "figures" / "similarity-sim_aou.svg").read_text()
    assert "sst2" in svg  # text stays text


def test_regression_has_its_section(tmp_path: Path) -> None:
    from dualscope.regression import Results, VonOswald, save

    results = Results("vonoswald")
    for x in (1.0, 2.0):
        results.over_seeds("trained </script>", "loss", [0.1, 0.2], seeds=[0, 1], panel="a", x_name="step", x=x)
    results.over_seeds("gd", "alignment", [0.9, 0.95], seeds=[0, 1])
    results.check("the trained layer is a step", "0.95", True)
    save(results, VonOswald(), tmp_path / "run", 1.0)
    text = write_report([tmp_path / "run"], tmp_path / "r.html").read_text()
    for said in (
        "In-context regression",
        "the trained layer is a step",
        "says nothing about pretrained language models",
    ):
        assert said in text
    assert "trained </script>" not in text
    assert 'id="verdict"' not in text


def test_a_quick_regression_is_not_judged(tmp_path: Path) -> None:
    from dualscope.regression import Results, VonOswald, save

    results = Results("vonoswald")
    results.over_seeds("gd", "loss", [0.9, 0.95], seeds=[0, 1])
    results.check("the trained layer is a step", "0.5", False)
    said = {}
    for quick in (True, False):
        place = save(results, VonOswald(), tmp_path / f"run-{quick}", 1.0, quick=quick)
        text = write_report([place], tmp_path / "r.html").read_text()
        said[quick] = [word for word in (">fails<", ">quick: not checked<") if word in text]
    assert said == {True: [">quick: not checked<"], False: [">fails<"]}
