"""Options that are given twice: the last counts, and nobody has to guess that."""

import pytest
from typer.testing import CliRunner

from dualscope.cli import app

TASK = ["-t", "embedded-sst2", "--dry-run"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--shots", "2", "--shots", "4"], "--shots was given 2 times, and the last counts: 4 "),
        (["--seeds=3", "--shots=2", "--seeds", "1"], "--seeds was given 2 times, and the last counts: 1 "),
        (["--seeds=1", "--seeds=2", "--seeds=1"], "--seeds was given 3 times, and the last counts: 1 "),
    ],
)
def test_the_last_counts_and_is_said(more: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["run", *TASK, *more])
    assert result.exit_code == 0, result.output
    assert said in result.stderr
    assert "given" not in result.stdout


def test_what_adds_up_needs_no_words() -> None:
    result = CliRunner().invoke(app, ["run", *TASK, "-t", "embedded-agnews", "--seeds", "1", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "given" not in result.stderr
    assert "embedded-agnews" in result.output
    assert "embedded-sst2" in result.output


def test_what_is_unknown_is_said_as_ever() -> None:
    result = CliRunner().invoke(app, ["run", "--shot", "2"])
    assert result.exit_code == 2
    assert "No such option" in result.output
