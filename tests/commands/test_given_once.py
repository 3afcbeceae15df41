"""Options that are given twice: refused where the last would win in silence."""

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["run", "--shots", "2", "--shots", "4"], "--shots"),
        (["run", "--shots=2", "--seeds", "1", "--shots=2", "--dry-run"], "--shots"),
        (["regression", "ahn", "--steps", "3", "--quick", "--steps", "4"], "--steps"),
        (["report", "--out", "a.html", "--out", "b.html"], "--out"),
    ],
)
def test_one_value_is_given_once(command: list[str], name: str) -> None:
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError)
    assert f"{name} was given 2 times" in str(result.exception)


def test_what_may_be_repeated_may() -> None:
    command = [
        "run",
        "-t",
        "embedded-sst2",
        "-t",
        "embedded-agnews",
        "--seeds",
        "1",
        "--dry-run",
        "--dry-run",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "embedded-agnews" in result.output
    assert "embedded-sst2" in result.output


def test_what_is_unknown_is_said_as_ever() -> None:
    result = CliRunner().invoke(app, ["run", "--shot", "2"])
    assert result.exit_code == 2
    assert "No such option" in result.output
