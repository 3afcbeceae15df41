"""The page on the papers: numbered without a gap, a command or a reason in every row, and commands that exist."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from dualscope.cli import app
from dualscope.learners import LEARNERS
from dualscope.metrics import METRICS
from dualscope.regression import EXPERIMENTS
from dualscope.report.charts.figures import FIGURES
from dualscope.studies.study import PRESETS
from dualscope.theory import chosen

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "papers.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]
COMMANDS = sorted({command for row in ROWS for command in re.findall(r"`((?:dualscope|python) [^`]+)`", row[3])})


def test_every_item_has_a_number_a_place_a_command_and_a_finding() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 65
    for row in ROWS:
        assert len(row) == 5, row
        assert all(row), row
        assert re.fullmatch(r"`(?:dualscope|python) [^`]+`|none: .+", row[3]), row


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("dualscope ")])
def test_commands_name_what_exists(command: str) -> None:
    _, name, *words = shlex.split(command)
    known = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {opt for param in known.params for opt in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options
    named = [(option, value) for option, value in pairwise(words) if option.startswith("--")]
    for option, value in named:
        if option == "--learner":
            assert value in LEARNERS
        if option == "--option":
            learner, field = value.partition("=")[0].split(".")
            assert field in LEARNERS[learner].options.model_fields
        if option == "--metric":
            assert value in METRICS
        if option == "--preset":
            assert (PRESETS / f"{value}.yaml").is_file()
        if option == "--figure":
            assert value in FIGURES
        if option == "--only":
            assert chosen((value,))
    if name == "regression":
        assert words[0] in EXPERIMENTS


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("python ")])
def test_modules_exist(command: str) -> None:
    _, _, module, *words = shlex.split(command)
    if module == "pytest":
        assert (REPOSITORY / words[0]).is_file()
    else:
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file()
