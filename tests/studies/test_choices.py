"""What a learner leaves open is chosen once a model and task, stored with its curve, and never chosen again."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualscope import Bench, run_study
from dualscope.choosing.halving import GRID
from dualscope.core.canonical import canonical
from dualscope.learners.gradient.gd import GdTuned, TunedOptions
from dualscope.studies import choices
from dualscope.studies.execute.runner import Runner
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.study import Study
from dualscope.tasks import Episode, Task


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[choices.ChoicePiece]:
    """Every piece of a choice that is computed from now on."""
    pieces: list[choices.ChoicePiece] = []
    compute = choices.ChoicePiece.compute

    def counting(piece: choices.ChoicePiece, *rest: Any) -> dict[str, Any]:
        pieces.append(piece)
        return compute(piece, *rest)

    monkeypatch.setattr(choices.ChoicePiece, "compute", counting)
    return pieces


def test_a_layer_is_chosen_once_and_kept(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path, counted: list[choices.ChoicePiece]
) -> None:
    kernel = {"learner": "kernel", "options": {"temperature": 0.1}}
    controlled = {**kernel, "control": "random-labels"}
    study = fields | {"tasks": list(task_files), "queries": 6, "learners": [kernel, controlled]}
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    # Of the learner and of the same under a control: one choice for each task, a piece for each of two seeds.
    assert sorted((piece.task, piece.seed) for piece in counted) == [
        ("kinds", 0),
        ("kinds", 1),
        ("moods", 0),
        ("moods", 1),
    ]
    run = RunFolder.open(tmp_path / "run")
    found = choices.chosen(run)
    assert {piece.job.key for piece in counted} == set(found)
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
    assert len(counted) == 4

    # A damaged choice is chosen again, and is the same.
    path = tmp_path / "run" / counted[0].job.path
    before = json.loads(path.read_text())
    path.write_text('{"settings": 3}')
    next((tmp_path / "run" / "cells").iterdir()).unlink()
    run_study(study, tmp_path / "run", device="cpu")
    assert len(counted) == 6
    assert json.loads(path.read_text())["settings"] == before["settings"]


def test_a_choice_that_is_interrupted_goes_on(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"loss": "label", "parameters": "kv", "optimiser": "sgd"}
    tuned = {"learner": "gd-tuned", "options": options}
    study = fields | {"tasks": [task_files[0]], "queries": 6, "learners": [tuned]}
    task = Task.load(task_files[0])
    asked = {example.id for seed in (0, 1) for example in Episode.draw(task, 4, seed, 6).queries}
    attempts: list[tuple[int, str]] = []
    learn = GdTuned.learn

    def until(count: int) -> None:
        def counted(self: GdTuned, bench: Bench, lr: float | None, given: TunedOptions) -> Any:
            if not self.is_open(given) and bench.lesson.query_ids[0] not in asked:
                if len(attempts) == count:
                    raise KeyboardInterrupt
                attempts.append((bench.seed, canonical(given.model_dump())))
            return learn(self, bench, lr, given)

        monkeypatch.setattr(GdTuned, "learn", counted)

    until(7)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "run", device="cpu")
    kept = list((tmp_path / "run" / "choice-pieces").iterdir())
    assert len(kept) == 1
    assert len(json.loads(kept[0].read_text())["tried"]) == 8  # 7 attempts, and the model before any learning
    until(-1)
    run_study(study, tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run" / "choice-pieces").iterdir())
    assert len(attempts) == len(set(attempts))  # nothing was tried twice
    assert len(attempts) == 2 * (len(GRID) + 4 + 2)  # two seeds; a third goes on to more epochs, and of these a third
    (went_on,) = choices.chosen(RunFolder.open(tmp_path / "run")).values()
    run_study(study, tmp_path / "at-once", device="cpu")
    (at_once,) = choices.chosen(RunFolder.open(tmp_path / "at-once")).values()
    assert went_on["settings"] == at_once["settings"]
    assert went_on["curve"] == at_once["curve"]


def test_a_damaged_piece_is_computed_again(fields: dict[str, Any], tmp_path: Path) -> None:
    study = fields | {"lr": "auto", "seeds": 1, "queries": 6, "learners": ["gd"]}
    first = run_study(study, tmp_path / "run", device="cpu")
    (file,) = (tmp_path / "run" / "choices").iterdir()
    chosen = json.loads(file.read_text())
    assert {cell.learning.lr for cell in first.cells if cell.learning.name == "gd"} == {chosen["settings"]["lr"]}
    for i, content in enumerate(('{"tried": 3}', '{"tried": [[{}, 1, 2, "x"]], "whole": true}', "[1]")):
        place = tmp_path / f"again-{i}"
        (job,) = Runner(Study.build(study), place, device="cpu").plan().choices
        piece = choices.ChoicePiece(job, 0)
        RunFolder.create(place).folder.write(piece.path, content.encode())
        run_study(study, place, device="cpu")
        again = choices.chosen(RunFolder.open(place))[job.key]
        assert (again["settings"], again["curve"]) == (chosen["settings"], chosen["curve"]), content


def test_each_learner_may_have_a_rate_of_its_own(fields: dict[str, Any], tmp_path: Path) -> None:
    learners = ["gd", {"learner": "gd-linearized", "lr": "own"}, "lcgd"]
    study = fields | {"lr": "auto", "seeds": 1, "queries": 6, "learners": learners}
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    found = choices.chosen(RunFolder.open(tmp_path / "run")).values()
    chosen = {choice["learner"]: choice["settings"]["lr"] for choice in found}
    assert chosen.keys() == {"gd", "gd-linearized"}
    used = {cell.learning.name: cell.learning.lr for cell in result.cells if cell.learning.lr is not None}
    assert used == {"gd": chosen["gd"], "lcgd": chosen["gd"], "gd-linearized": chosen["gd-linearized"]}
