"""The first day, walked: every command of the page, in an empty folder, with the wheel in an environment of its own."""

from pathlib import Path

import pytest

from docs.walk import PAGE, STEP, steps, walk
from tests.test_package import installed, wheel

__all__ = ["installed", "wheel"]


def test_the_page_shows_what_its_commands_print() -> None:
    text = PAGE.read_text(encoding="utf-8")
    silent = [found["commands"] for found in STEP.finditer(text) if "```text" not in found[0]]
    assert silent == [], "run: python -m docs.walk FOLDER"
    assert "Traceback" not in text


@pytest.mark.slow
def test_the_walk(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the wheel alone
    printed = list(walk(tmp_path, installed))
    assert len(printed) == len(steps())
    answers = [said for said in printed if "cells, " in said]
    assert len(answers) == 2  # the first run and the study of two models
    assert (tmp_path / "runs" / "two-models" / "report.html").stat().st_size > 1e6
    assert "\\toprule" in (tmp_path / "tables.tex").read_text()
    assert list((tmp_path / "figures").glob("*.pdf"))
    assert (tmp_path / "mlflow.db").is_file()
