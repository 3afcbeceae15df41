"""The README keeps its word: what it shows can be done."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualscope.tasks import TaskConfig

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    lines = (line for block in blocks("sh") for line in block.splitlines())
    return [shlex.split(line, comments=True) for line in lines if line.startswith("dualscope ")]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_task_files(text: str) -> None:
    TaskConfig.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("code", blocks("python"))
def test_code(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_and_their_options_exist(cli: Callable[..., Any], command: str) -> None:
    """Without running them: some would fetch a model."""
    code, out, _ = cli(command[1], "--help")
    assert code == 0
    for option in (word for word in command if word.startswith("--")):
        assert option in out


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE))
def test_make_targets_exist(target: str) -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
