"""The table of data sets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualscope.commands.list import statistics_of
from dualscope.tasks import Task


def test_counted_by_hand(tmp_path: Path) -> None:
    rows = {
        "train": [("a fine film", 1), ("bad", 0), ("so so", 0)],
        "validation": [("good", 1), ("not so good at all", 0), ("fine", 1), ("nice", 1)],
    }
    (tmp_path / "sst2").mkdir()
    for split, examples in rows.items():
        lines = [json.dumps({"sentence": text, "label": label}) for text, label in examples]
        (tmp_path / "sst2" / f"{split}.jsonl").write_text("\n".join(lines))
    found = statistics_of(Task.load("sst2", data=tmp_path))
    assert (found.train, found.evaluation, found.classes, found.uniform) == (3, 4, 2, 0.5)
    assert found.majority == 0.75
    assert (found.words, found.longest) == ((3 + 7 + 3 + 3) / 4, 7)  # "Sentence:" and "Label:" are words too


def test_the_command_names_what_is_here_and_what_is_not(cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("list", "tasks", "--statistics", "--data", tmp_path, "--offline")
    assert result.code == 0
    lines = {line.split()[0]: line.split() for line in result.out.splitlines() if line.strip()}
    assert lines["embedded-sst5"][1:5] == ["1,000", "2,000", "5", "0.20"]
    assert "not here: sst2" in result.out


def test_statistics_are_of_tasks(cli: Callable[..., Any]) -> None:
    result = cli("list", "learners", "--statistics")
    assert result.code == 2
    assert "dualscope list tasks --statistics" in result.err
