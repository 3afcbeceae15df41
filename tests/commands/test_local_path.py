"""What is only written to this machine says so of an address, and of a place that takes nothing, before any work."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError
from dualscope.regression.results_folder import shipped_runs

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
