"""What is only written to this machine says so of an address, of a place that takes nothing, and of a place among the
cells of a run, before any work.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError
from dualscope.core.folder import check_not_kept
from dualscope.core.rows import COLUMNS
from dualscope.regression.results_folder import shipped_runs
from dualscope.report import write_figures, write_report
from dualscope.report.answer_table import write_latex
from dualscope.report.charts.figures import write_figure
from dualscope.report.page import write_shared
from dualscope.studies.run_folder.storage import RunFolder

PROC = Path("/proc")  # root may write there, says the kernel, and then it does not work


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["regression", "ahn", "--quick"], "--out"),
        (["train", "--steps", "1"], "--out"),
        (["report", str(shipped_runs()["ahn"])], "--out"),
        (["report", str(shipped_runs()["ahn"])], "--figures"),
        (["report", str(shipped_runs()["ahn"])], "--latex"),
        (["export", "nowhere", "--to", "csv"], "--out"),
        (["convert", "nowhere"], "OUT"),
    ],
)
def test_an_address_makes_no_folders(
    command: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = [option] if option.startswith("-") else []
    result = CliRunner().invoke(app, [*command, *name, "s3://bucket/x"])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == f"{option} s3://bucket/x: written to this machine alone; give a local path"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not PROC.is_dir(), reason="a system without /proc")
def test_a_place_that_takes_no_files_is_refused_before_training() -> None:
    result = CliRunner().invoke(app, ["regression", "ahn", "--quick", "--out", str(PROC / "x")])
    assert isinstance(result.exception, InputError)
    assert "--out /proc/x: cannot be made" in str(result.exception)


KEPT = ("cells", "queries", "responses", "traces", "failures", "packed/rows", "choices", "texts", "provenance", "aside")
AMONG_CELLS: list[tuple[str, list[str]]] = [
    ("--out", ["report", "RUN", "--out", "RUN/cells/x.html"]),
    ("--out", ["report", "RUN", "--out", "RUN/cells"]),
    ("--out", ["report", "RUN", "--out", "RUN/there/../queries/deep/x.html"]),
    ("--out", ["report", "RUN", "--out", "LINK/x.html"]),
    ("--out", ["report", "RUN", "--figure", "controls", "--out", "RUN/traces/x.pdf"]),
    ("--out", ["report", "RUN", "--figure", "controls", "--out", "RUN/study.yaml"]),
    ("--figures", ["report", "RUN", "--figures", "RUN/cells"]),
    ("--latex", ["report", "RUN", "--latex", "RUN/responses/x.tex"]),
    ("--latex", ["report", "RUN", "--latex", "RUN/study.yaml"]),
    ("--latex", ["report", "RUN", "--latex", "RUN/summary.csv"]),
    ("--out", ["share", "RUN", "--out", "RUN/failures/x.html"]),
    ("--out", ["share", "RUN", "--out", "RUN/verdict.json"]),
    ("--share", ["explore", "--share", "RUN/cells/x.html"]),
    *(("--out", ["export", "RUN", "--to", to, "--out", "RUN/cells"]) for to in ("csv", "mlflow", "wandb", "trackio")),
    *(("--out", ["export", "RUN", "--to", "csv", "--out", f"RUN/{part}/x"]) for part in KEPT),
    ("--out", ["pack", "RUN", "--out", "OTHER/cells"]),
    ("--out", ["pack", "RUN", "--out", "RUN/packed"]),
    ("--out", ["run", "--dry-run", "--out", "RUN/cells"]),
    ("--out", ["run", "--dry-run", "--out", "RUN/cells/more"]),
    ("--out", ["regression", "ahn", "--quick", "--out", "RUN/cells"]),
    ("--out", ["train", "--steps", "1", "--out", "RUN/cells"]),
    ("OUT", ["convert", "nowhere", "RUN/traces/model"]),
    ("OUT", ["bake", "RUN/cells/adapter", "--task", "embedded-sst2"]),
]


def _runs(place: Path) -> dict[str, str]:
    """Two runs with a cell each, and a link to where one keeps its cells; their names in the commands above."""
    for name in ("mine", "other"):
        RunFolder.create(place / name).store("c" * 20, [{**dict.fromkeys(COLUMNS), "model": "m", "metric": "accuracy"}])
        (place / name / "study.yaml").write_text("seeds: 1\n")
    (place / "link").symlink_to(place / "mine/cells")
    return {"RUN": str(place / "mine"), "OTHER": str(place / "other"), "LINK": str(place / "link")}


def _content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("option", "command"), AMONG_CELLS, ids=lambda one: "-".join(one).replace("/", "-"))
def test_nothing_is_written_among_the_cells_of_a_run(option: str, command: list[str], tmp_path: Path) -> None:
    names = _runs(tmp_path)
    before = _content(tmp_path)
    for name, place in names.items():
        command = [one.replace(name, place) for one in command]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError), result.exception
    said = str(result.exception)
    assert said.startswith(option), said
    assert any(words in said for words in ("the run's own", "a run folder", "in the run folder")), said
    assert _content(tmp_path) == before


NO_NAME = "x\0y"
SHIPPED = str(shipped_runs()["ahn"])
TO_NO_NAME: list[tuple[str, list[str]]] = [
    ("--out", ["report", SHIPPED, "--out", NO_NAME]),
    ("--out", ["report", SHIPPED, "--out", f"{NO_NAME}/x.html"]),
    ("--out", ["report", SHIPPED, "--figure", "controls", "--out", NO_NAME]),
    ("--figures", ["report", SHIPPED, "--figures", NO_NAME]),
    ("--latex", ["report", SHIPPED, "--latex", NO_NAME]),
    ("--out", ["share", SHIPPED, "--out", NO_NAME]),
    *(("--out", ["export", SHIPPED, "--to", to, "--out", NO_NAME]) for to in ("csv", "mlflow", "wandb", "trackio")),
    ("--out", ["pack", "RUN", "--out", NO_NAME]),
    ("--out", ["run", "--dry-run", "--out", NO_NAME]),
    ("--out", ["run", "--task", "embedded-sst2", "--out", NO_NAME]),
    ("--out", ["regression", "ahn", "--quick", "--out", NO_NAME]),
    ("--out", ["train", "--steps", "1", "--out", NO_NAME]),
    ("OUT", ["convert", "nowhere", NO_NAME]),
    ("OUT", ["bake", NO_NAME, "--task", "embedded-sst2"]),
]


@pytest.mark.parametrize(
    ("option", "command"), TO_NO_NAME, ids=[f"{number}-{command[0]}" for number, (_, command) in enumerate(TO_NO_NAME)]
)
def test_a_name_that_no_file_can_have_is_refused(
    option: str, command: list[str], cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NUL in a name: an error of the input (2) in words, and nothing is made."""
    run = _runs(tmp_path)["RUN"]
    before = _content(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = cli(*(run if one == "RUN" else one for one in command))
    said = " ".join(done.err.split())
    assert done.code == 2, said
    assert f"error: {option} x\\x00y" in said
    assert "no file can have this name" in said
    assert _content(tmp_path) == before


@pytest.mark.parametrize(
    "command", [["report"], ["pack"], ["share"], ["export", "--to", "csv"]], ids=lambda one: one[0]
)
def test_a_run_cannot_have_such_a_name_either(
    command: list[str], cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(command[0], NO_NAME, *command[1:])
    assert done.code == 2, done.err
    assert "x\\x00y" in done.err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_among_them_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an option, results go to the current folder."""
    run = _runs(tmp_path)["RUN"]
    before = _content(tmp_path)
    monkeypatch.chdir(tmp_path / "mine/cells")
    for command in (["share", run], ["export", run, "--to", "csv"], ["report", run, "--figure", "controls"]):
        result = CliRunner().invoke(app, command)
        assert "the run's own files" in str(result.exception), command
    assert _content(tmp_path) == before


def test_nothing_is_written_among_them_from_python(tmp_path: Path) -> None:
    run = _runs(tmp_path)["RUN"]
    cells = Path(run) / "cells"
    for write in (
        lambda: write_report([run], cells / "x.html"),
        lambda: write_figures([run], cells),
        lambda: write_figure([run], "controls", out=cells / "x.pdf"),
        lambda: write_latex([run], cells / "x.tex"),
        lambda: write_shared(run, cells / "x.html"),
        lambda: RunFolder.create(cells / "run"),
    ):
        with pytest.raises(InputError, match="the run's own files"):
            write()
    RunFolder.create("memory://kept-places/run").folder.write("study.yaml", b"seeds: 1\n")
    with pytest.raises(InputError, match="the run's own files"):
        RunFolder.create("memory://kept-places/run/cells")


def test_beside_them_and_in_other_folders_of_such_names_it_is(tmp_path: Path) -> None:
    run = _runs(tmp_path)["RUN"]
    (tmp_path / "biology/cells").mkdir(parents=True)
    for place in (tmp_path / "biology/cells/x.html", Path(run) / "report.html", Path(run) / "figures/x.pdf"):
        check_not_kept("--out", place)
