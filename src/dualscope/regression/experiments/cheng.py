"""Cheng et al. 2024: which attention suits which data, when attention is functional gradient descent."""

from typing import ClassVar

import torch
from torch import Tensor

from dualscope.regression.architectures.transformer import Scores
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Steps
from dualscope.regression.problems import GaussianProcess, Kernel, TaskBatch, bayes, generators
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Workplace

DATA: tuple[Kernel, ...] = ("linear", "relu", "exp")
ATTENTION: tuple[Scores, ...] = ("linear", "relu", "exp", "softmax")
SCALED: tuple[Scores, ...] = ("exp", "softmax")  # where the size of the products matters beyond the rate
SCALES = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)


@EXPERIMENTS.register("cheng")
class Cheng(Experiment):
    """Constructed layers y_j <- y_j - r sum_i h(x_i, x_j) y_i; r, and a scale for exp and softmax, by
    search on training draws of each seed. ``steps`` is the number of rates that are tried for each scale.
    """

    summary: ClassVar[str] = "functional GD: data kernel x attention kernel"

    steps: Steps = 30
    d: int = 5
    n: int = 14
    depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    search: int = 1500
    test: int = 5000

    @property
    def work(self) -> int:
        return len(DATA) * len(self.seeds) * len(ATTENTION)

    def carry_out(self, results: Results, place: Workplace) -> None:
        # Of the deepest: the mean over seeds and its standard error.
        table: dict[tuple[str, str], tuple[float, float]] = {}
        rows = []
        for data in DATA:
            found = self._errors(data, place)
            cells = []
            for name, by_seed in found.items():
                for depth in self.depths if name != "Bayes" else self.depths[-1:]:
                    means = [errors[depth].mean().item() for errors in by_seed]
                    where = {"panel": f"{data} data", "x_name": "layers", "x": depth}
                    mean, low, high = results.over_seeds(name, "squared error", means, self.seeds, **where)
                every = torch.cat([errors[self.depths[-1]] for errors in by_seed])
                table[data, name] = (mean, float(every.std() / len(every) ** 0.5))
                cells.append(shown(mean, low, high))
            rows.append((data, *cells))
        columns = ("data", "Bayes", *(f"{name} attention" for name in ATTENTION))
        title = f"Squared error after {self.depths[-1]} layers, mean over seeds [95 % interval]"
        results.table(title, columns, rows)
        self._check(results, table)

    def conclude(self, results: Results) -> None:
        reads = (
            "The claim is borne out where the attention with the data's own kernel is lowest, and comes down to Bayes' "
            "answer (the dot; without one it is exact)."
        )
        results.figure("squared error", "Error against the number of layers", log_y=True, reads=reads)

    def _errors(self, data: Kernel, place: Workplace) -> dict[str, list[dict[int, Tensor]]]:
        """For Bayes and every attention, for every seed: depth -> squared errors [test tasks]."""
        process = GaussianProcess(data, self.d, self.n)
        found: dict[str, list[dict[int, Tensor]]] = {name: [] for name in ("Bayes", *ATTENTION)}
        for search_draws, test_draws in zip(generators(self.seeds, 1), generators(self.seeds, 2), strict=True):
            search = process.draw(self.search, search_draws).to(place.device)
            test, covariance = process.draw_with_gram(self.test, test_draws)
            found["Bayes"].append({self.depths[-1]: (bayes(test, covariance) - test.target).square()})
            test = test.to(place.device)
            for name in ATTENTION:
                errors = {}
                for depth, (rate, scale) in self._search(search, name).items():
                    guess = predictions(test, name, depth, scale, torch.tensor([rate]))[-1][0]
                    errors[depth] = (guess - test.target).square().cpu()
                found[name].append(errors)
                place.advance(1)
        return found

    def _search(self, batch: TaskBatch, name: Scores) -> dict[int, tuple[float, float]]:
        """depth -> the rate and the scale of least loss."""
        rates = torch.logspace(-2.5, 1, self.steps)
        best = dict.fromkeys(self.depths, (float("inf"), 0.0, 1.0))
        for scale in SCALES if name in SCALED else (1.0,):
            by_layer = predictions(batch, name, max(self.depths), scale, rates)
            for depth in self.depths:
                losses = (by_layer[depth - 1] - batch.target).square().mean(-1).nan_to_num(float("inf"))
                least, at = losses.min(0)
                best[depth] = min(best[depth], (least.item(), rates[int(at)].item(), scale))
        return {depth: (rate, scale) for depth, (_, rate, scale) in best.items()}

    def _check(self, results: Results, table: dict[tuple[str, str], tuple[float, float]]) -> None:
        of = {key: value[0] for key, value in table.items()}
        others = min(of["linear", name] for name in ATTENTION[1:])
        found = f"{of['linear', 'linear']:.4f}, the next best {others:.4f}"
        results.check("linear attention is best on linear data", found, of["linear", "linear"] < others)
        found = " and ".join(f"{name} {of['exp', name]:.3f}" for name in SCALED)
        below = all(of["exp", name] < of["exp", "linear"] for name in SCALED)
        results.check(
            "exp and softmax are below linear on exp data", f"{found}, linear {of['exp', 'linear']:.3f}", below
        )
        margins = {
            (data, name): (of[data, name] - of[data, "Bayes"]) / max(table[data, name][1], 1e-12)
            for data in DATA
            for name in ATTENTION
        }
        least = min(margins.values())
        results.check("nothing is below Bayes by 3 standard errors", f"nearest: {least:+.1f}", least > -3)


def attention_matrix(batch: TaskBatch, name: Scores, scale: float) -> Tensor:
    """h(x_i, x_j), i an example, j an example or the query: [tasks, n, n + 1]."""
    products = scale * batch.x @ torch.cat([batch.x, batch.query.unsqueeze(-2)], -2).mT
    if name == "softmax":
        return torch.softmax(products, -2)  # over the keys
    found: Tensor = {"linear": lambda p: p, "relu": torch.relu, "exp": torch.exp}[name](products)
    return found


def predictions(batch: TaskBatch, name: Scores, depth: int, scale: float, rates: Tensor) -> list[Tensor]:
    """After each of ``depth`` layers, the predictions [rates, tasks]; inputs never change, so neither does h."""
    matrix = attention_matrix(batch, name, scale)
    start = torch.cat([batch.y, torch.zeros_like(batch.target).unsqueeze(-1)], -1).unsqueeze(-2)
    state = start.expand(-1, len(rates), -1)  # [tasks, rates, n + 1]
    found = []
    for _ in range(depth):
        state = state - rates.to(matrix.device).unsqueeze(-1) * (state[..., :-1] @ matrix)
        found.append(-state[..., -1].mT)
    return found
