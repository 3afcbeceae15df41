"""Ren & Liu's figure: changes of attention that the dual model suggests, as training goes on."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dualscope.models.attention_kinds import Adapter, Augmented, Variant, attend, make_variant
from dualscope.regression.data import Linear, draw_for, generators
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Advance, silent, train

NORMAL = "normal"
PANELS: dict[str, dict[str, dict[str, Any]]] = {
    "regularized": {
        "alpha = 0.1": {"name": "regularized", "alpha": 0.1},
        "alpha = 0.5": {"name": "regularized", "alpha": 0.5},
        "alpha = -0.5": {"name": "regularized", "alpha": -0.5},
        "alpha = 0.5, exact dual": {"name": "regularized", "alpha": 0.5, "form": "dual"},
    },
    "augmented": {
        "g1 (values)": {"name": "augmented", "parts": "g1"},
        "g2 (keys)": {"name": "augmented", "parts": "g2"},
        "g1 and g2": {"name": "augmented", "parts": "both"},
    },
    "negative": {
        f"k = {k}, beta = {beta}": {"name": "negative", "k": k, "beta": beta}
        for k in (1, 3)
        for beta in (0.1, 0.5)
    },
}


@EXPERIMENTS.register("variants")
class Variants(Experiment):
    """One softmax attention layer, trained for ``steps`` epochs on the same tasks from the same start by
    every variant.

    Tokens are (x_i, y_i) and (x, 0); the query attends to all of them, itself too; the prediction is the
    last entry of its output, so demonstrations are the dual model's training data and the query's own term
    is its start. No order of the curves is claimed: see whether the intervals overlap.
    """

    summary: ClassVar[str] = "regularized, augmented and negative attention: error against epochs"
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": (0, 1), "steps": 3, "tasks": 128}

    seeds: Seeds = tuple(range(8))
    steps: int = 100
    d: int = 5
    n: int = 15
    tasks: int = 1024  # to train on; as many again to test on
    batch: int = 128
    rate: float = 3e-3

    @property
    def work(self) -> int:
        return self.steps * self._epoch * (1 + sum(len(panel) for panel in PANELS.values()))

    @property
    def _epoch(self) -> int:
        return max(1, self.tasks // self.batch)

    def run(self, advance: Advance = silent) -> Results:
        results = Results("variants")
        normal = self._curve({"name": "softmax"}, advance)
        for panel, variants in PANELS.items():
            curves = {NORMAL: normal} | {
                name: self._curve(options, advance) for name, options in variants.items()
            }
            rows = []
            for name, curve in curves.items():
                for epoch, errors in curve.items():
                    where = {"panel": panel, "x_name": "epoch", "x": epoch}
                    last = results.over_seeds(name, "squared error", errors, self.seeds, **where)
                # Every variant saw the same draws, so the difference from normal is paired by seed.
                gain = curve[self.steps] - normal[self.steps]
                paired = results.over_seeds(name, "minus normal", gain, self.seeds, panel=panel)
                rows.append((name, shown(*last), "" if name == NORMAL else shown(*paired)))
            title = f"{panel.capitalize()}: squared error after {self.steps} epochs, mean over seeds [95 % interval]"
            results.table(title, ("attention", "squared error", "minus normal, paired"), rows)
        return results

    def _curve(self, options: dict[str, Any], advance: Advance) -> dict[int, Tensor]:
        """epoch -> squared error on test tasks, [seeds]."""
        # x of length about 1, so that a target has variance 1 and predicting 0 has error 1
        problem = Linear(self.d, self.n, inputs="normal", scales=(1 / self.d,) * self.d)
        tasks = draw_for(problem, self.tasks, generators(self.seeds, 1))
        test = draw_for(problem, self.tasks, generators(self.seeds, 2))
        order = generators(self.seeds, 3)
        layer = Layer(self.d + 1, make_variant(options), generators(self.seeds, 0))
        tokens, target, test_tokens = tasks.tokens, tasks.target, test.tokens
        queue: list[Tensor] = []
        found: dict[int, Tensor] = {}

        def loss() -> Tensor:
            if not queue:
                shuffled = torch.stack([torch.randperm(self.tasks, generator=g) for g in order])
                queue.extend(shuffled.split(min(self.batch, self.tasks), 1)[: self._epoch])
            rows = (torch.arange(len(self.seeds))[:, None], queue.pop())
            return (layer(tokens[rows]) - target[rows]).square().mean(-1)

        def watch(step: int) -> None:
            with torch.no_grad():
                found[step // self._epoch] = (layer(test_tokens) - test.target).square().mean(-1)

        train(layer, loss, self.steps * self._epoch, self.rate, None, None, advance, watch, self._epoch)
        return found


class Layer(nn.Module):
    """One head of softmax attention, a copy for each generator: tokens [copies, tasks, n + 1, width] ->
    [copies, tasks].
    """

    def __init__(self, width: int, variant: Variant, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.variant = variant

        def draw() -> Tensor:
            return torch.stack([torch.randn(width, width, generator=g) for g in generators]) * width**-0.5

        # Keys start as queries and values near the tokens: like attends to like, and targets are passed on. With signs
        # left to chance, half of the seeds sink into a saddle, and the curves would show nothing else.
        self.query = nn.Parameter(draw())
        self.key = nn.Parameter(self.query.detach().clone())
        self.value = nn.Parameter(torch.eye(width) + 0.3 * draw())
        self.adapters = nn.ModuleDict()
        if isinstance(variant, Augmented):
            for role in variant.adapted:
                each = [Adapter(width, width, variant.hidden, variant.c, generator=g) for g in generators]
                adapter = Adapter(width, width, variant.hidden, variant.c, copies=len(generators))
                adapter.first.data = torch.stack([one.first.data for one in each])
                self.adapters[role] = adapter

    def forward(self, tokens: Tensor) -> Tensor:
        query = self._project(tokens[..., -1:, :], self.query)
        key, value = self._project(tokens, self.key, "key"), self._project(tokens, self.value, "value")
        output, _ = attend(query, key, value, self.variant)
        return output[..., 0, -1]

    def _project(self, tokens: Tensor, weight: Tensor, role: str = "") -> Tensor:
        flat = tokens.reshape(len(weight), -1, tokens.shape[-1])
        projected = (flat @ weight.mT).view(tokens.shape)
        return projected + self.adapters[role](tokens) if role in self.adapters else projected
