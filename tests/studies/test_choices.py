"""What a learner leaves open is chosen once a model and task, stored with its curve, and never chosen again."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualscope import Bench, run_study
from dualscope.core.halving import GRID
from dualscope.learners.gradient.tuned import GdTuned, TunedOptions
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


def test_a_choice_that_is_interrupted_goes_on(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"loss": "label", "parameters": "kv", "optimiser": "sgd"}
    tuned = {"learner": "gd-tuned", "options": options}
    study = fields | {"tasks": [task_files[0]], "queries": 6, "learners": [tuned]}
    attempts: list[dict[str, Any]] = []
    attempt = GdTuned._try

    def counted(self: GdTuned, bench: Bench, given: TunedOptions, candidate: dict[str, Any]) -> Any:
        if len(attempts) == 20:
            attempts.append({})
            raise KeyboardInterrupt
        attempts.append(candidate)
        return attempt(self, bench, given, candidate)

    monkeypatch.setattr(GdTuned, "_try", counted)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "run", device="cpu")
    kept = list((tmp_path / "run" / "choice-pieces").iterdir())
    assert len(kept) == 1
    tried = json.loads(kept[0].read_text())["tried"]
    assert len(tried) == 22  # 20 attempts, and two seeds before any learning
    damaged = next(iter(tried))
    del tried[damaged]["n"]
    kept[0].write_text(json.dumps({"tried": tried}))
    run_study(study, tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run" / "choice-pieces").iterdir())
    whole = 2 * (len(GRID) + 4 + 2)  # two seeds; a third goes on to more epochs, and of these a third
    assert len([one for one in attempts if one]) in (whole, whole + 1)  # the damaged one may be an attempt
    (went_on,) = choices.chosen(RunFolder.open(tmp_path / "run")).values()
    run_study(study, tmp_path / "at-once", device="cpu")
    (at_once,) = choices.chosen(RunFolder.open(tmp_path / "at-once")).values()
    assert went_on["settings"] == at_once["settings"]
    assert went_on["curve"] == at_once["curve"]
