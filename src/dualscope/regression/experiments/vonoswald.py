"""von Oswald et al. 2023: a trained linear self-attention layer against a step of gradient descent."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from dualscope.regression.comparison import alignment, half_mse
from dualscope.regression.constructed import best_eta, best_eta_gamma, gd_transformer, repeat
from dualscope.regression.data import Batch, Linear, draw_for, generators
from dualscope.regression.experiment import EXPERIMENTS, Experiment
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Advance, silent, train
from dualscope.regression.transformer import Transformer

MEASURES = ("loss", "prediction difference", "sensitivity cosine", "sensitivity distance")


@EXPERIMENTS.register("vonoswald")
class VonOswald(Experiment):
    """One layer is trained from nothing; each deeper, recurrent model starts from the one before it.

    Their tasks (N = n_x = 10, w ~ N(0, I), x ~ U(-1/2, 1/2), fresh at every step), loss and search for eta.
    For a run in minutes, Adam's rate is 3e-3, falling along a cosine, batches are smaller, and a layer does
    not start near zero.
    """

    summary: ClassVar[str] = "trained linear attention against GD and GD++, in depth"
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": (0,),
        "steps": 60,
        "batch": 256,
        "test": 500,
        "search": 500,
    }

    steps: int = 1500
    d: int = 10
    n: int = 10
    depths: tuple[int, ...] = (1, 2, 3)  # trained
    constructed: tuple[int, ...] = (1, 2, 3, 4, 5)  # GD and GD++ alone
    batch: int = 1024
    deep_batch: int = 512
    rate: float = 3e-3
    test: int = 5000
    search: int = 4000

    @property
    def work(self) -> int:
        return self.steps * len(self.depths)

    @property
    def problem(self) -> Linear:
        return Linear(self.d, self.n)

    def run(self, advance: Advance = silent) -> Results:
        results = Results("vonoswald")
        rivals = self._rivals(results)
        self._train(results, rivals, advance)
        return results

    def _rivals(self, results: Results) -> dict[int, dict[str, Transformer]]:
        """GD and GD++ for every depth; their numbers are searched on training draws, their losses are on
        test draws.
        """
        (search,) = (self.problem.draw(self.search, g) for g in generators([0], stream=3))
        (test,) = (repeat(self.problem.draw(self.test, g), 1) for g in generators([0], stream=4))
        found: dict[int, dict[str, Transformer]] = {}
        rows = []
        for depth in sorted({*self.constructed, *self.depths}):
            eta = best_eta(search, depth)
            found[depth] = {"GD": gd_transformer([eta], depth, self.d, self.n)}
            note = {"GD": f"eta {eta:.1f}"}
            if depth > 1:  # one layer's prediction is made before the inputs are curved
                plus, gamma = best_eta_gamma(search, depth, eta)
                found[depth]["GD++"] = gd_transformer([plus], depth, self.d, self.n, [gamma])
                note["GD++"] = f"eta {plus:.1f}, gamma {gamma:.3f}"
            for name, model in found[depth].items():
                loss = float(half_mse(model.predict, test))
                results.add(name, "loss", loss, panel="depth", x_name="layers", x=depth, n=self.test)
                rows.append((str(depth), name, f"{loss:.4f}", note[name]))
        results.table(
            "Gradient descent by construction", ("layers", "learner", "loss", "found by search"), rows
        )
        if 2 in found:
            gd, plus_plus = (float(half_mse(found[2][name].predict, test)) for name in ("GD", "GD++"))
            results.check("two steps: GD++ beats GD", f"{plus_plus:.4f} against {gd:.4f}", plus_plus < gd)
        return found

    def _train(self, results: Results, rivals: dict[int, dict[str, Transformer]], advance: Advance) -> None:
        problem, test = self.problem, draw_for(self.problem, self.test, generators(self.seeds, 2))
        rows, before = [], None
        for depth in self.depths:
            model = Transformer(self.d + 1, depth, generators(self.seeds, 0), recurrent=True)
            if before is not None:
                model.load_state_dict(before.state_dict())
            draws = generators(self.seeds, 100 + depth)
            batch = self.batch if depth == 1 else min(self.batch, self.deep_batch)
            gd = rivals[depth]["GD"]

            def loss(model: Transformer = model, batch: int = batch, draws: list = draws) -> Tensor:
                return half_mse(model.predict, draw_for(problem, batch, draws))

            def watch(step: int, model: Transformer = model, gd: Transformer = gd) -> None:
                found = alignment(model.predict, copies_of(gd, len(self.seeds)).predict, test)
                for measure in MEASURES:
                    where = {"panel": "training", "x_name": "step", "x": step}
                    results.over_seeds("trained against GD", measure, found[measure], self.seeds, **where)

            train(
                model,
                loss,
                self.steps,
                rate=self.rate if depth == 1 else 2 * self.rate,
                decay_to=self.rate / 30,
                advance=advance,
                watch=watch if depth == 1 else None,
                watch_every=max(1, self.steps // 20),
            )
            rows += self._compare(results, depth, model, rivals[depth], test)
            before = model
        columns = ("layers", "against", *MEASURES)
        results.table("Trained layers, mean over seeds [95 % interval]", columns, rows)

    def _compare(
        self, results: Results, depth: int, model: Transformer, rivals: dict[str, Transformer], test: Batch
    ) -> list[tuple[str, ...]]:
        rows = []
        for name, rival in rivals.items():
            found = alignment(model.predict, copies_of(rival, len(self.seeds)).predict, test)
            cells = []
            for measure in MEASURES:
                series = "trained" if measure == "loss" else f"trained against {name}"
                if measure == "loss" and name != "GD":
                    cells.append("")
                    continue
                where = {"panel": "depth", "x_name": "layers", "x": depth}
                cells.append(shown(*results.over_seeds(series, measure, found[measure], self.seeds, **where)))
            rows.append((str(depth), name, *cells))
            if depth == 1:
                apart = (found["loss"].mean() / found["reference loss"].mean() - 1).item()
                cosine = found["sensitivity cosine"].mean().item()
                results.check(
                    "one layer: the trained loss is within 3 % of GD's",
                    f"{100 * apart:+.2f} %",
                    abs(apart) <= 0.03,
                )
                results.check("one layer: sensitivity cosine >= 0.99", f"{cosine:.4f}", cosine >= 0.99)
                rows.append(
                    ("1", "half-way to GD", self._interpolated(results, model, rival, test), "", "", "")
                )
        return rows

    def _interpolated(self, results: Results, model: Transformer, gd: Transformer, test: Batch) -> str:
        """The loss of the layer whose K^T Q and P V are the means of the trained layer's and GD's.

        A layer is the same when K^T Q is divided by beta and P V multiplied by it; beta is chosen so that
        the trained K^T Q has GD's size, the mean of its diagonal, the target's entry left out.
        """
        with torch.no_grad():
            (keyed, mixed), (gd_keyed, gd_mixed) = model.products(0), gd.products(0)
            beta = keyed.diagonal(dim1=-2, dim2=-1)[..., :-1].mean(-1)[..., None, None]
            keyed, mixed = (keyed / beta + gd_keyed) / 2, (mixed * beta + gd_mixed) / 2
            between = copies_of(gd, len(self.seeds))
            identity = torch.eye(self.d + 1).expand_as(keyed)
            for weight, value in zip(
                (between.key, between.query, between.output, between.value),
                (identity, keyed, mixed, identity),
                strict=True,
            ):
                weight.copy_(value.unsqueeze(1))
            loss = half_mse(between.predict, test)
        where = {"panel": "depth", "x_name": "layers", "x": 1}
        return shown(*results.over_seeds("half-way to GD", "loss", loss, self.seeds, **where))


def copies_of(model: Transformer, copies: int) -> Transformer:
    """A single constructed copy, once for every seed."""
    many = Transformer(model.key.shape[-1], model.depth, [torch.Generator()] * copies, recurrent=True)
    with torch.no_grad():
        for mine, theirs in zip(many.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs.expand_as(mine))
    return many.requires_grad_(False)
