"""What a learner leaves open is chosen once a model and task, stored with its curve, and never chosen again."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study
from dualscope.studies import choices
from dualscope.studies.run_folder.storage import RunFolder


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[choices.ChoiceJob]:
    """Every job that is computed from now on."""
    jobs: list[choices.ChoiceJob] = []
    choose = choices.choose

    def counting(job: choices.ChoiceJob, *rest: Any) -> dict[str, Any]:
        jobs.append(job)
        return choose(job, *rest)

    monkeypatch.setattr(choices, "choose", counting)
    return jobs


def test_a_layer_is_chosen_once_and_kept(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path, counted: list[choices.ChoiceJob]
) -> None:
    kernel = {"learner": "kernel", "options": {"temperature": 0.1}}
    controlled = {**kernel, "control": "random-labels"}
    study = fields | {"tasks": list(task_files), "queries": 6, "learners": [kernel, controlled]}
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    # Two seeds, and the same learner under a control: one choice for each task.
    assert sorted(job.task for job in counted) == ["kinds", "moods"]
    run = RunFolder.open(tmp_path / "run")
    found = choices.chosen(run)
    assert {job.key for job in counted} == set(found)
    for choice in found.values():
        layers = {row["layer"] for row in choice["curve"] if "layer" in row}
        assert layers == {0, 1}
        assert {row["seed"] for row in choice["curve"]} == {0, 1}
        right = {
            layer: sum(row["accuracy"] * row["n"] for row in choice["curve"] if row.get("layer") == layer)
            for layer in layers
        }
        assert right[choice["settings"]["layer"]] == pytest.approx(max(right.values()))
        assert choice["examples"] == sum(row["n"] for row in choice["curve"] if "layer" not in row)

    # The same command again chooses nothing, also where cells are missing.
    for path in list((tmp_path / "run" / "cells").iterdir())[:3]:
        path.unlink()
    again = run_study(study, tmp_path / "run", device="cpu")
    assert again.complete
    assert len(again.computed) == 3
    assert len(counted) == 2

    # A damaged choice is chosen again, and is the same.
    path = tmp_path / "run" / counted[0].path
    before = json.loads(path.read_text())
    path.write_text('{"settings": 3}')
    next((tmp_path / "run" / "cells").iterdir()).unlink()
    run_study(study, tmp_path / "run", device="cpu")
    assert len(counted) == 3
    assert json.loads(path.read_text())["settings"] == before["settings"]
