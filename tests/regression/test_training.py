"""A training that was stopped goes on from its checkpoint and ends where it would have ended."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.regression import EXPERIMENTS, Experiment, training
from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size
from dualscope.regression.training import Schedule, train

SMALL: dict[str, dict[str, Any]] = {
    "ahn": {"seeds": (0, 1), "steps": 8, "batch": 32},  # linear attention, Adam
    "newton": {"steps": 8, "conditions": (1.0,), "test": 16, "curriculum": 4},  # GPT-2 blocks, orthogonal steps
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
def test_an_interrupted_training_is_gone_on_with(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AVERAGED", 0.5)  # of 8 steps: the mean is part of a checkpoint
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


def trained_weights(steps: int, average: float) -> tuple[Tensor, float]:
    """The weights that a training keeps, and the last that was seen of them in watching."""
    model = Gpt2Learner(2, 3, [0], Size(1, 8, 2))

    def draw(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(1, 4, 3, 2, generator=generator), torch.randn(1, 4, 3, generator=generator)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = (model(x, y) - y).square().mean((1, 2))
        return found

    def watch() -> dict[str, Tensor]:
        return {"sum": model.flat.detach().sum(1)}

    schedule = Schedule(steps, 0.01, spectral=True, average=average)
    training = train(model, draw, loss, schedule, watch=watch, watch_every=steps)
    return model.flat.detach(), training.log[-1]["sum"][0]


def test_a_training_watches_and_keeps_the_mean_of_its_last_weights() -> None:
    every = [trained_weights(steps, 0)[0] for steps in (1, 2, 3)]
    kept, watched = trained_weights(3, 1)
    torch.testing.assert_close(kept, torch.stack(every).mean(0))
    assert watched == pytest.approx(float(kept.sum()), rel=1e-5)
    assert not torch.allclose(kept, every[-1])


def test_a_training_on_prompts_is_at_its_last_rate_where_its_error_must_not_fall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    plain = Schedule.rate_at

    def noted(schedule: Schedule, step: int, progress: float) -> float:
        rates.append(plain(schedule, step, progress))
        return rates[-1]

    monkeypatch.setattr(Schedule, "rate_at", noted)
    small("newton", steps=40, warmup=4).run()
    assert min(rates) == rates[-1]
    assert rates[32:] == [rates[-1]] * 8  # the last fifth
    assert rates[20] > 2 * rates[-1]
