"""Akyurek et al. 2023: which closed-form predictor does a trained in-context learner resemble?"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from dualscope.regression.data import Batch, Linear, draw_for, generators
from dualscope.regression.experiment import EXPERIMENTS, Experiment
from dualscope.regression.results import Results, interval, shown
from dualscope.regression.training import Advance, silent, train
from dualscope.regression.transformer import Transformer
from dualscope.theory import closed_forms

Weights = Callable[[Tensor, Tensor], Tensor]  # x [n, d], y [n] -> [d]


@EXPERIMENTS.register("akyurek")
class Akyurek(Experiment):
    """Linear attention layers, trained on prompts of 1 to n examples, noiseless and noisy; x uniform on
    (-1/2, 1/2), so that deep linear attention stays finite, and w ~ N(0, I).

    The ideal learner is least squares (of least norm where n < d) without noise, ridge with Bayes' penalty
    sigma^2 with it; how near a few layers come is what is measured.
    """

    summary: ClassVar[str] = "closed forms: which is nearest to trained layers, without and with noise"
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": (0,),
        "steps": 40,
        "batch": 64,
        "test": 200,
        "depth": 2,
    }

    steps: int = 1500
    d: int = 4
    n: int = 10
    depth: int = 3
    noises: tuple[float, ...] = (0.0, 0.25)
    batch: int = 256
    rate: float = 3e-3
    test: int = 2000

    @property
    def work(self) -> int:
        return self.steps * len(self.noises)

    def run(self, advance: Advance = silent) -> Results:
        results = Results("akyurek")
        for noise in self.noises:
            problem = Linear(self.d, self.n, noise)
            model = self._trained(problem, advance)
            self._compare(results, problem, model)
        return results

    def _trained(self, problem: Linear, advance: Advance) -> Transformer:
        model = Transformer(self.d + 1, self.depth, generators(self.seeds, 0))
        draws, lengths = generators(self.seeds, 1), torch.Generator().manual_seed(0)

        def loss() -> Tensor:
            n = int(torch.randint(1, self.n + 1, (), generator=lengths))
            batch = first(draw_for(problem, self.batch, draws), n)
            return (model.predict(batch.tokens) - batch.target).square().mean(-1)

        train(model, loss, self.steps, self.rate, 1.0, self.rate / 50, advance)
        return model.requires_grad_(False)

    def _rivals(self, problem: Linear) -> dict[str, Weights]:
        (search,) = (problem.draw(self.test, g) for g in generators([0], 3))
        rates = torch.logspace(-1, 1.5, 40).tolist()

        def loss(rate: float) -> float:
            weights = vmap(lambda x, y: closed_forms.gd(x, y, rate, 1))(search.x, search.y)
            return float(((weights * search.query).sum(-1) - search.target).square().mean())

        rate = min(rates, key=loss)
        rivals: dict[str, Weights] = {"least squares": closed_forms.ols}
        if problem.noise:
            rivals["ridge, Bayes"] = lambda x, y: closed_forms.ridge(x, y, problem.noise**2)
        rivals["ridge 0.5"] = lambda x, y: closed_forms.ridge(x, y, 0.5)
        rivals["one GD step"] = lambda x, y: closed_forms.gd(x, y, rate, 1)
        return rivals

    def _compare(self, results: Results, problem: Linear, model: Transformer) -> None:
        whole = draw_for(problem, self.test, generators(self.seeds, 2))
        panel = f"noise {problem.noise:g}"
        rivals = self._rivals(problem)
        spd: dict[str, list[Tensor]] = {name: [] for name in (*rivals, "3 nearest")}
        ilwd: dict[str, list[Tensor]] = {name: [] for name in rivals}
        error: dict[str, list[Tensor]] = {name: [] for name in ("trained", *rivals, "3 nearest")}
        for n in range(1, self.n + 1):
            batch = first(whole, n)
            mine, weights = model.predict(batch.tokens), implied(model, batch)
            error["trained"].append((mine - batch.target).square().mean(-1))
            for name, rival in rivals.items():
                theirs = vmap(vmap(rival))(batch.x, batch.y)
                guess = (theirs * batch.query).sum(-1)
                spd[name].append((mine - guess).square().mean(-1))
                ilwd[name].append((weights - theirs).square().sum(-1).mean(-1))
                error[name].append((guess - batch.target).square().mean(-1))
            nearest = vmap(vmap(lambda x, y, q, k=min(3, n): closed_forms.knn(x, y, q[None], k)[0]))
            guess = nearest(batch.x, batch.y, batch.query)
            spd["3 nearest"].append((mine - guess).square().mean(-1))
            error["3 nearest"].append((guess - batch.target).square().mean(-1))
        for metric, found in (("SPD", spd), ("ILWD", ilwd), ("squared error", error)):
            for name, by_n in found.items():
                for n, values in enumerate(by_n, 1):
                    where = {"panel": panel, "x_name": "examples", "x": n}
                    results.over_seeds(name, metric, values, self.seeds, **where)
        few, many = max(1, self.d // 2), self.n
        columns = [
            ("SPD", spd, few),
            ("SPD", spd, many),
            ("ILWD", ilwd, many),
            ("squared error", error, many),
        ]
        rows = [
            (
                name,
                *(
                    shown(*interval(found[name][n - 1].tolist())) if name in found else ""
                    for _, found, n in columns
                ),
            )
            for name in error
        ]
        title = f"Noise {problem.noise:g}, d = {self.d}: how far the trained layers are from each predictor"
        results.table(title, ("predictor", *(f"{metric}, {n} examples" for metric, _, n in columns)), rows)


def first(batch: Batch, n: int) -> Batch:
    """The same tasks with only their first n examples."""
    return Batch(batch.x[..., :n, :], batch.y[..., :n], batch.query, batch.target)


def implied(model: Transformer, batch: Batch) -> Tensor:
    """The weights that the model behaves as, [copies, tasks, d]: with no MLP and linear scores its
    prediction is linear in the query, so d unit queries say all (a least-squares fit to any queries would
    find the same).
    """
    d = batch.query.shape[-1]
    answers = [
        model.predict(Batch(batch.x, batch.y, unit.expand_as(batch.query), batch.target).tokens)
        for unit in torch.eye(d)
    ]
    return torch.stack(answers, -1)
