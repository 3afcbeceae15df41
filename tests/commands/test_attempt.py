"""One's own demonstrations in one line."""

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError

SHOWN = ["a fine film => Positive", "a dull plot => Negative"]


def test_a_table_for_every_query_with_layers_as_a_line() -> None:
    done = CliRunner().invoke(app, ["try", *SHOWN, "--query", "a superb miracle", "-q", "a bore", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "a superb miracle" in done.output
    assert "a bore" in done.output
    gd = next(line for line in done.output.splitlines() if line.strip().startswith("gd "))
    assert len([mark for mark in gd if mark in "▁▂▃▄▅▆▇█·"]) == 6  # the embedded model's layers
    assert "at rate" in done.output


@pytest.mark.parametrize("arguments", [["no arrow", "--query", "x"], [*SHOWN], ["=> Positive", "--query", "x"]])
def test_what_is_wrong_is_said(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["try", *arguments])
    assert isinstance(done.exception, InputError)
    assert "as in" in str(done.exception)
