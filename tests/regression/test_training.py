"""A training that was stopped goes on from its checkpoint and ends where it would have ended."""

from pathlib import Path
from typing import Any

import pytest

from dualscope.regression import EXPERIMENTS, Experiment, prompt_training

SMALL: dict[str, dict[str, Any]] = {
    "ahn": {"seeds": (0, 1), "steps": 8, "batch": 32},  # linear attention, Adam
    "newton": {
        "steps": 8,
        "conditions": (1.0,),
        "test": 16,
        "curriculum": 4,
    },  # GPT-2 blocks, orthogonal steps
}


class Stop:
    """Progress that is interrupted, once, as by Ctrl-C, after so many steps."""

    def __init__(self, after: int) -> None:
        self.after, self.done = after, 0

    def __call__(self, steps: int) -> None:
        self.done += steps
        if self.done == self.after and steps:
            raise KeyboardInterrupt


def small(name: str, **changes: Any) -> Experiment:
    return EXPERIMENTS[name].quick(**{**SMALL[name], **changes})


@pytest.mark.parametrize("name", SMALL)
def test_an_interrupted_training_is_gone_on_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_training, "AVERAGED", 0.5)  # of 8 steps: the mean is part of a checkpoint
    with pytest.raises(KeyboardInterrupt):
        small(name).run(Stop(5), tmp_path)
    done: list[int] = []
    resumed = small(name).run(done.append, tmp_path)
    assert done[0] >= 4  # what the checkpoint had
    straight = small(name).run()
    assert [row["value"] for row in resumed.rows] == pytest.approx(
        [row["value"] for row in straight.rows], rel=1e-4, abs=1e-6, nan_ok=True
    )


def test_a_checkpoint_of_another_schedule_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        small("ahn").run(Stop(5), tmp_path)
    done: list[int] = []
    small("ahn", steps=6).run(done.append, tmp_path)
    assert done[0] == 0
