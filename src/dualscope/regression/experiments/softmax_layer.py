"""Ren & Liu's figure: one softmax attention layer, and what their changes of its loss do to it in training."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dualscope.models.attention_kinds.install import attend
from dualscope.models.attention_kinds.kinds import Adapter, Augmented, make_kind
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds, Steps
from dualscope.regression.experiments.variants import KINDS, NORMAL, arms_of, check_arms
from dualscope.regression.problems import Linear, draw_for, generators
from dualscope.regression.results import Results, shown, shown_mean
from dualscope.regression.training import Schedule, Workplace, train

STRENGTHS, WIDTHS = (0.1, 0.3, 1.0, 3.0), (4, 16, 64)
AUGMENTED = {"name": "augmented", "parts": "both", "c": 1.0, "hidden": 16}
CHANGED: dict[str, dict[str, dict[str, Any]]] = {
    "regularized": KINDS["regularized"],
    "augmented": {
        "g1 (values)": AUGMENTED | {"parts": "g1"},
        "g2 (keys)": AUGMENTED | {"parts": "g2"},
        **{f"g1 and g2, c = {c:g}": AUGMENTED | {"c": c} for c in STRENGTHS},
        **{f"g1 and g2, hidden width {width}": AUGMENTED | {"hidden": width} for width in WIDTHS if width != 16},
    },
    "negative": KINDS["negative"],
}
ARMS = arms_of(CHANGED)
ERROR, LAST = "squared error", "squared error after training"


class SoftmaxLayer(nn.Module):
    """W_O W_V X softmax(X^T W_K^T W_Q x / sqrt(width)), read at the query's token: its last entry is the guess.

    Several independent copies, one a generator. All tokens are keys, the query's own among them: it is the part that
    no demonstration made, which regularized attention scales down.
    """

    def __init__(self, width: int, starts: Sequence[torch.Generator], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.kind = make_kind(options)

        def weights() -> nn.Parameter:
            return nn.Parameter(torch.stack([torch.randn(width, width, generator=g) * width**-0.5 for g in starts]))

        self.query, self.key, self.value, self.output = weights(), weights(), weights(), weights()
        self.augment = nn.ModuleDict()
        if isinstance(self.kind, Augmented):
            for role in self.kind.adapted:
                augment = Adapter(width, width, self.kind.hidden, self.kind.c, copies=len(starts))
                drawn = [torch.randn(self.kind.hidden, width, generator=g) * width**-0.5 for g in starts]
                augment.first.data = torch.stack(drawn)  # a copy depends on its own seed alone
                self.augment[role] = augment

    def forward(self, tokens: Tensor) -> Tensor:
        """[copies, tasks, tokens, width] -> guesses [copies, tasks]."""
        key, value = self._projected(tokens, "key"), self._projected(tokens, "value")
        query = tokens[..., -1:, :] @ self.query.mT.unsqueeze(1)
        mixed, _ = attend(query, key, value, self.kind)
        read: Tensor = (mixed @ self.output.mT.unsqueeze(1))[..., 0, -1]
        return read

    def _projected(self, tokens: Tensor, role: str) -> Tensor:
        found: Tensor = tokens @ getattr(self, role).mT.unsqueeze(1)
        return found + self.augment[role](tokens) if role in self.augment else found


@EXPERIMENTS.register("softmax-layer")
class OneSoftmaxLayer(Experiment):
    """A single softmax attention layer with each change of attention, trained on linear regression: the same prompts,
    the same start, 100 epochs.

    An epoch is ten steps on fresh prompts; the slides do not say what theirs is. No order is claimed: the differences
    from normal attention are paired by seed, and their intervals decide.
    """

    summary: ClassVar[str] = "one softmax layer, regularized, augmented, negative; c and hidden width swept"

    seeds: Seeds = tuple(range(12))
    steps: Steps = 1000
    arms: tuple[str, ...] = tuple(ARMS)
    d: int = Field(default=5, ge=1)
    n: int = Field(default=15, ge=1)
    batch: int = Field(default=256, ge=1)
    rate: float = 3e-3
    epoch: int = Field(default=10, ge=1, description="steps")

    @property
    def trainings(self) -> int:
        return len(self.arms)

    def carry_out(self, results: Results, place: Workplace) -> None:
        problem = Linear(self.d, self.n, inputs="normal", scales=(1 / self.d,) * self.d)  # targets of variance 1
        test = draw_for(problem, 1024, generators(self.seeds, 2)).to(place.device)
        results.notes["error of zero"] = float(test.target.square().mean())
        check_arms(self.arms, ARMS)
        for number, name in enumerate(self.arms):
            layer = SoftmaxLayer(self.d + 1, generators(self.seeds, 0), ARMS[name]).to(place.device)

            def draw(step: int) -> tuple[Tensor, ...]:
                batch = draw_for(problem, self.batch, generators(self.seeds, 1, place.device, step))
                return batch.tokens, batch.target

            def loss(tokens: Tensor, target: Tensor, layer: SoftmaxLayer = layer) -> Tensor:
                found: Tensor = (layer(tokens) - target).square().mean(-1)
                return found

            def watch(layer: SoftmaxLayer = layer) -> dict[str, Tensor]:
                with torch.no_grad():
                    return {ERROR: (layer(test.tokens) - test.target).square().mean(-1)}

            schedule = Schedule(self.steps, self.rate, 1.0, minutes=self.minutes)
            training = train(layer, draw, loss, schedule, place.of(f"arm-{number}"), watch, self.epoch)
            curve = training.curve(ERROR)
            by_epoch = {step / self.epoch: errors for step, errors in curve.items()}
            results.over_x(name, ERROR, by_epoch, self.seeds, "epoch", "training")
            results.over_seeds(name, LAST, curve[max(curve)], self.seeds)
            results.notes[f"steps, {name}"] = training.steps

    def conclude(self, results: Results) -> None:
        names = [name for name in ARMS if results.values(name, LAST)]
        plain, zero = results.values(NORMAL, LAST), float(results.notes["error of zero"])
        rows = []
        for name in names:
            mine = results.values(name, LAST)
            difference = ""
            if plain and name != NORMAL:
                change = [mine[seed] - plain[seed] for seed in self.seeds]
                difference = shown(*results.over_seeds(name, f"{LAST}, minus normal", change, self.seeds))
            rows.append((name, shown_mean(list(mine.values())), difference))
        for metric, arm in (("c", "g1 and g2, c = {:g}"), ("hidden width", "g1 and g2, hidden width {}")):
            for x in STRENGTHS if metric == "c" else WIDTHS:
                series = f"augmented, {arm.format(x)}" if (metric, x) != ("hidden width", 16) else ""
                errors = results.values(series or "augmented, g1 and g2, c = 1", LAST)
                if errors:
                    where = {"panel": "sweeps", "x_name": metric, "x": x}
                    results.over_seeds("g1 and g2", f"{LAST}, by {metric}", list(errors.values()), self.seeds, **where)
        about = f"After training, mean over {len(self.seeds)} seeds [95 % interval]; answering 0 has {zero:.3f}"
        results.table(about, ("attention", "squared error", "minus normal, paired"), rows)
        if plain:
            worst = max(plain.values())
            results.check(
                "normal attention learns in every seed (it errs less than 0 does)", f"{worst:.3f}", worst < zero
            )
        results.figure(ERROR, "Error in training, by epochs", log_y=True, reads="All began with the same weights.")
        results.figure(LAST, "Error after training", reads="Less is better.")
        reads = "Left of zero is better than normal attention; an interval that holds zero found no difference."
        results.figure(f"{LAST}, minus normal", "Error, minus normal attention's, paired by seed", reads=reads)
        results.figure(f"{LAST}, by c", "How strong the augmentation is", log_x=True, reads="Less is better.")
        results.figure(f"{LAST}, by hidden width", "How wide the augmentation is", log_x=True, reads="Less is better.")
