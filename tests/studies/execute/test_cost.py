"""What is estimated of a learner follows from what was chosen for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dualscope.core.spec import LearnerSpec
from dualscope.studies import Study
from dualscope.studies.choices import ChoicePiece
from dualscope.studies.execute.cost import Estimator
from dualscope.studies.execute.runner import Runner
from dualscope.studies.execute.work import Work


def test_what_is_open_counts_as_the_most(fields: dict[str, Any], tmp_path: Path) -> None:
    runner = Runner(Study.build(fields), tmp_path / "run", device="cpu")
    cell = next(cell for cell in runner.plan().cells if cell.learning.lr is not None)
    estimator = Estimator(runner.run, (), runner.resolver)

    def gradients(**chosen: object) -> int:
        settings = (("gd-tuned", "{}", json.dumps(chosen)),) if chosen else ()
        found = estimator.memory(replace(cell, learning=LearnerSpec("gd-tuned"), chosen=settings))
        assert found is not None
        return found.gradients

    common = {"lr": 0.1, "epochs": 1, "loss": "all"}
    most = gradients(parameters="all", optimiser="adam", **common)
    assert gradients() == most
    assert gradients(parameters="kv", optimiser="adam", **common) < most
    assert gradients(parameters="all", optimiser="sgd", **common) == most // 4


def test_choosing_takes_what_its_candidates_take(fields: dict[str, Any], tmp_path: Path) -> None:
    def needed(learner: str) -> int:
        study = Study.build(fields | {"learners": [learner], "tasks": [fields["tasks"][0]]})
        runner = Runner(study, tmp_path / learner, device="cpu")
        (job,) = runner.plan().choices
        return Estimator(runner.run, (), runner.resolver).memory_of(Work(ChoicePiece(job)))

    assert needed("gd-tuned") > needed("kernel")  # all weights by Adam; nothing is trained


def test_draws_at_once_take_less_time_than_one_by_one_and_more_memory(fields: dict[str, Any], tmp_path: Path) -> None:
    study = fields | {"interventions": [{"kind": "relabel", "draws": 8}], "shots": 8, "learners": ["gd"]}
    runner = Runner(Study.build(study), tmp_path / "run", device="cpu")
    estimator = Estimator(runner.run, (), runner.resolver)
    cells = [cell for cell in runner.plan().cells if cell.learning == LearnerSpec("gd", lr=0.1)]
    cell = replace(next(cell for cell in cells if cell.intervention is not None), plants=())
    alone = replace(cell, learning=LearnerSpec("lcgd-clipped", lr=0.1))  # it learns from draws one by one
    found = [estimator.seconds(one) for one in (cell, alone)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] < found[1]
    one = estimator.memory(replace(cell, intervention=None))
    eight = estimator.memory(cell)
    assert one is not None
    assert eight is not None
    assert eight.context == 8 * one.context
    assert eight.changes > one.changes
    assert eight.total > one.total
