"""Help as people read it: panels, examples, no types where no value is taken, nothing eaten by markup."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from dualscope.cli import COMMANDS, PANELS, app


def _help(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_has_its_panel() -> None:
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)
    for title in PANELS:
        assert title in _help()


@pytest.mark.parametrize("name", list(COMMANDS))
def test_flags_take_no_value(name: str) -> None:
    assert "<bool>" not in _help(name)


def test_an_extra_s_name_is_not_eaten() -> None:
    assert "dualscope[mlflow]" in re.sub(r"[\s│]+", "", _help("export"))


def test_examples_stand_below_as_they_are_typed() -> None:
    lines = [line.strip() for line in _help("run").splitlines()]
    assert lines.index("Examples:") > lines.index(next(line for line in lines if "--seeds" in line))
    assert "dualscope run study.yaml --dry-run" in lines


def test_options_of_a_run_stand_in_panels() -> None:
    said = _help("run")
    for title in ("What is studied", "How it is measured", "Where it is computed", "What is kept and shown"):
        assert title in said


def test_completion_is_offered() -> None:
    assert "--install-completion" in _help()


def test_one_label_is_refused_in_words(cli: Callable[..., Any]) -> None:
    result = cli("try", "a fine film => Positive", "--query", "moving")
    assert result.code == 2
    assert "all demonstrations have the label 'Positive'" in result.err
