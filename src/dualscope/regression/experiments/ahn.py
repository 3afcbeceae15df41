"""Ahn et al. 2023: the preconditioner that a linear attention layer learns, against the best one."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Steps
from dualscope.regression.problems import Linear, draw_for, generators
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Schedule, Workplace, train
from dualscope.theory.preconditioned import one_layer_risk, optimal_preconditioner


@EXPERIMENTS.register("ahn")
class Ahn(Experiment):
    """Every entry of P V and K^T Q is trained; theory says what is left: one number in P V, and A* in K^T Q."""

    summary: ClassVar[str] = "learned preconditioner A against the optimal A*"

    steps: Steps = 2000
    n: int = 20
    scales: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0)  # the eigenvalues of Sigma, which is diagonal
    batch: int = 1024
    rate: float = 0.01

    def carry_out(self, results: Results, place: Workplace) -> None:
        d, covariance = len(self.scales), torch.diag(torch.tensor(self.scales))
        problem = Linear(d, self.n, inputs="normal", scales=self.scales)
        best = optimal_preconditioner(covariance, self.n)
        model = Transformer(d + 1, 1, generators(self.seeds, 0), scale=0.2).to(place.device)

        def draw(step: int) -> tuple[Tensor, ...]:
            batch = draw_for(problem, self.batch, generators(self.seeds, 1, place.device, step))
            return batch.tokens, batch.target

        def loss(tokens: Tensor, target: Tensor) -> Tensor:
            return (model.predict(tokens) - target).square().mean(-1)

        def watch() -> dict[str, Tensor]:
            return {"error": relative_error(learned(model).cpu(), best)}

        schedule = Schedule(self.steps, self.rate, 1.0, self.rate / 100, minutes=self.minutes)
        training = train(model, draw, loss, schedule, place.of("layer"), watch, max(1, self.steps // 20))
        results.notes["steps"] = training.steps
        for step, error in training.curve("error").items():
            results.over_seeds("learned A", "error", error, self.seeds, panel="training", x_name="step", x=step)
        model.cpu()
        found = learned(model)
        off = shown(*results.over_seeds("learned A", "relative error", relative_error(found, best), self.seeds))
        risk = [float(one_layer_risk(a, covariance, self.n)) for a in found]
        excess = shown(*results.over_seeds("learned A", "risk", risk, self.seeds))
        least = float(one_layer_risk(best, covariance, self.n))
        results.add("A*", "risk", least)
        average = found.mean(0)
        for i, scale in enumerate(self.scales):
            where: dict[str, Any] = {"panel": "diagonal", "x_name": "eigenvalue of Sigma", "x": scale}
            results.over_seeds("learned A", "diagonal entry", found[:, i, i], self.seeds, **where)
            results.add("A*", "diagonal entry", float(best[i, i]), **where)
        results.table(
            "One layer's preconditioner",
            ("eigenvalue of Sigma", "learned A", "A*"),
            [(f"{s:g}", f"{average[i, i]:.4f}", f"{best[i, i]:.4f}") for i, s in enumerate(self.scales)],
        )
        results.table(
            f"d = {d}, n = {self.n}, mean over seeds [95 % interval]",
            ("", "learned", "A*"),
            [("|A - A*| / |A*|", off, "0"), ("risk", excess, f"{least:.4f}")],
        )
        worst = float(relative_error(found, best).max())
        results.check("A is A*, to 5 % (every seed)", f"at most {100 * worst:.2f} %", worst <= 0.05)

    def conclude(self, results: Results) -> None:
        results.figure("error", "The learned A approaches A*", log_y=True)
        same = "The claim is borne out where the learned A lies on A*."
        results.figure("diagonal entry", "The diagonal of A", reads=same)
        results.figure("relative error", "How far A is from A*", reads="|A - A*| / |A*|: 0 is the same matrix.")
        results.figure("risk", "The risk of one layer", reads="No layer can have less than A* has.")


def learned(model: Transformer) -> Tensor:
    """A of a trained layer: minus the target's entry of P V, which fixes the scale, times K^T Q: [copies,
    d, d].

    The prediction is -(P V)_yy sum_i y_i x_i^T (K^T Q) x / n, that is w . x with w = A^T (1/n) sum_i y_i x_i.
    """
    with torch.no_grad():
        keyed, mixed = model.products(0)
        return -mixed[:, 0, -1:, -1:] * keyed[:, 0, :-1, :-1]


def relative_error(found: Tensor, best: Tensor) -> Tensor:
    """|A - A*| / |A*| in Frobenius' norm: [copies]."""
    result: Tensor = (found - best).flatten(1).norm(dim=1) / best.norm()
    return result
