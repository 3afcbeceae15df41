"""`dualscope bake` from the command line: what it writes, what it says, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError

CHEAP = ("--learner", "gd", "--lr", "1", "--queries", "20", "--no-ceiling", "--device", "cpu")


def bake(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["bake", *map(str, arguments)])


def test_a_task_becomes_an_adapter_that_dualscope_loads_too(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    out = tmp_path / "adapter"
    done = bake(out, "--task", "embedded-sst2", "--shots", 4, *CHEAP, "--rank", 8, "--other", "embedded-subj")
    assert done.exit_code == 0, done.output
    assert "tokens saved a query" in done.output
    assert "embedded-subj" in done.output
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 8

    from dualscope import Model

    assert Model.load("embedded", device="cpu", adapter=str(out)).name == "embedded+adapter"
    again = bake(out, "--task", "embedded-sst2", *CHEAP)
    assert isinstance(again.exception, InputError)
    assert "exists" in str(again.exception)


def test_ones_own_examples(tmp_path: Path) -> None:
    texts = {"a fine film": "Positive", "a dull plot": "Negative", "a bore": "Negative", "moving and funny": "Positive"}
    (tmp_path / "mine.txt").write_text("\n".join(f"{text} => {label}" for text, label in texts.items()))
    shown = ("--demonstrations", tmp_path / "mine.txt", "--other", "embedded-subj")
    done = bake(tmp_path / "adapter", *shown, *CHEAP)
    assert done.exit_code == 0, done.output
    assert "2 demonstrations" in done.output
    assert "on 1 held-out" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give what to bake"),
        (("--task", "embedded-sst2", "--demonstrations", "x.csv"), "and not both"),
        (("--task", "embedded-sst2", "--template", "{text}"), "--template belongs to --demonstrations"),
        (("--task", "embedded-sst2", "--learner", "gdd"), "did you mean gd"),
        (("--task", "embedded-sst2", "--learner", "task-vector", "--option", "layer=1"), "LoRA carries"),
        (("--task", "embedded-sst2", "--learner", "gd", "--option", "epochs"), "expected NAME=VALUE"),
        (("--task", "embedded-sst2", "--learner", "gd", "--lr", "1", "--rank", "0"), "at least 1, found 0"),
        (("--task", "embedded-sst2", "--learner", "gd", "--option", "epoch=1", "--lr", "1"), "epoch"),
        (("--demonstrations", "nowhere.csv"), "no such file"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = bake(tmp_path / "adapter", "--device", "cpu", "--no-ceiling", "--queries", 10, "--shots", 2, *arguments)
    assert isinstance(done.exception, InputError), done.output
    assert said in str(done.exception)
    assert not (tmp_path / "adapter").exists()
