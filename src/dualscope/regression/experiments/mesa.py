"""von Oswald et al. 2023b: linear attention trained to continue sequences that have their own dynamics."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from dualscope.regression.data import generators
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds
from dualscope.regression.processes import LinearDynamics
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Advance, silent, train
from dualscope.regression.transformer import Transformer


@EXPERIMENTS.register("mesa")
class Mesa(Experiment):
    """s_{t+1} = W s_t + noise, W orthogonal and new for each sequence (a choice: the paper's exact settings
    are not known to us). Tokens are (0, s_t, s_{t-1}); the first third of a token after the last layer is
    the guess of s_{t+1}.
    """

    summary: ClassVar[str] = "autoregressive linear dynamics: trained layers, one GD step, least squares"
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": (0,),
        "steps": 30,
        "batch": 16,
        "test": 100,
        "length": 20,
    }

    seeds: Seeds = (0, 1, 2)
    steps: int = 1500
    d: int = 10
    length: int = 50
    noise: float = 0.1
    depths: tuple[int, ...] = (1, 2)
    heads: int = 2
    batch: int = 64
    rate: float = 2e-3
    test: int = 1000

    @property
    def work(self) -> int:
        return self.steps * len(self.depths)

    def run(self, advance: Advance = silent) -> Results:
        results = Results("mesa")
        dynamics = LinearDynamics(self.d, self.length, self.noise)
        test = torch.stack([dynamics.draw(self.test, g) for g in generators(self.seeds, 2)])
        (search,) = (dynamics.draw(self.test, g) for g in generators([0], 3))
        eta, penalty = self._search(search)
        with torch.no_grad():
            found = {
                f"one GD step, eta {eta:.3g}": one_step_gd(test, eta),
                f"least squares, ridge {penalty:.3g}": least_squares(test, penalty),
            }
        for depth in self.depths:
            model = self._trained(dynamics, depth, advance)
            with torch.no_grad():
                found[f"{depth} trained layer{'s' * (depth > 1)}"] = guesses(model, test)
        target = test[:, :, 1:]
        rows = []
        for name, guess in found.items():
            errors = (guess - target).square().sum(-1).mean(1)  # [seeds, length]
            for t in range(self.length):
                where = {"panel": "time", "x_name": "t", "x": t}
                results.over_seeds(name, "squared error", errors[:, t], self.seeds, **where)
            late = errors[:, -10:].mean(-1)
            rows.append(
                (
                    name,
                    shown(*results.over_seeds(name, "mean squared error", errors.mean(-1), self.seeds)),
                    shown(*results.over_seeds(name, "late squared error", late, self.seeds)),
                    f"{(guess - next(iter(found.values()))).square().sum(-1).mean():.4f}",
                )
            )
        title = f"|guess - next state|^2, W orthogonal, d = {self.d}, T = {self.length}, noise {self.noise:g}"
        results.table(title, ("learner", "all t", "last 10 t", "from one GD step"), rows)
        return results

    def _search(self, sequences: Tensor) -> tuple[float, float]:
        target = sequences[:, 1:]

        def loss(guess: Tensor) -> float:
            return float((guess - target).square().sum(-1).mean())

        etas = torch.logspace(-3, 1, 60).tolist()
        penalties = torch.logspace(-3, 2, 16).tolist()
        return (
            min(etas, key=lambda eta: loss(one_step_gd(sequences, eta))),
            min(penalties, key=lambda penalty: loss(least_squares(sequences, penalty))),
        )

    def _trained(self, dynamics: LinearDynamics, depth: int, advance: Advance) -> Transformer:
        initial, draws = generators(self.seeds, 10 * depth), generators(self.seeds, 10 * depth + 1)
        model = Transformer(3 * self.d, depth, initial, causal=True, heads=self.heads, scale=0.1)

        def loss() -> Tensor:
            sequences = torch.stack([dynamics.draw(self.batch, g) for g in draws])
            return (guesses(model, sequences) - sequences[:, :, 1:]).square().sum(-1).mean((1, 2))

        train(model, loss, self.steps, self.rate, 1.0, self.rate / 10, advance)
        return model


def guesses(model: Transformer, sequences: Tensor) -> Tensor:
    """[copies, tasks, length + 1, d] -> the guess of each next state, [copies, tasks, length, d]."""
    now = sequences[..., :-1, :]
    before = torch.cat([torch.zeros_like(now[..., :1, :]), now[..., :-1, :]], -2)
    return model(torch.cat([torch.zeros_like(now), now, before], -1))[..., : now.shape[-1]]


def one_step_gd(sequences: Tensor, eta: float) -> Tensor:
    """At every t, one step from W = 0 on the mean of |W s_i - s_{i+1}|^2 / 2 over i < t, then W s_t.

    Attention's own average counts the token at hand too (t + 1 of them), and so does this one.
    """
    now, following = sequences[..., :-1, :], sequences[..., 1:, :]
    scores = (now @ now.mT).tril(-1)
    count = torch.arange(1, now.shape[-2] + 1).unsqueeze(-1)
    return eta * (scores / count) @ following


def least_squares(sequences: Tensor, penalty: float) -> Tensor:
    """At every t, the ridge regression of s_{i+1} on s_i over i < t, then W s_t: descent with the best
    preconditioner.
    """
    now, following = sequences[..., :-1, :], sequences[..., 1:, :]
    d = now.shape[-1]
    inner = penalty * torch.eye(d).expand(*now.shape[:-2], d, d)
    cross = torch.zeros_like(inner)  # sum s_i s_{i+1}^T
    out = [torch.zeros_like(now[..., 0, :])]
    for t in range(1, now.shape[-2]):
        last = now[..., t - 1, :, None]
        inner, cross = inner + last @ last.mT, cross + last @ following[..., t - 1, None, :]
        out.append((torch.linalg.solve(inner, now[..., t, :, None]).mT @ cross).squeeze(-2))
    return torch.stack(out, -2)
