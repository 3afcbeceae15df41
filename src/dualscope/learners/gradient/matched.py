"""Two learners that take steps of the same size, so that only the direction differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.descent.loop import Adjust, Adjusted
from dualscope.descent.parameters import Gradient
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.gradient.gd import gd_step
from dualscope.learners.gradient.lcgd import LocalOptions, descend_locally, descend_locally_draws
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner

if TYPE_CHECKING:
    from dualscope.descent.dual_records import Log
    from dualscope.learners.bench import Bench


@LEARNERS.register("lcgd-matched")
class LcgdMatched(Learner[LocalOptions]):
    """LCGD whose every step has, in every layer, the norm of plain GD's step there."""

    title = "layer-causal gradient descent with plain steps' sizes"
    colour = "@purple"
    options = LocalOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: LocalOptions) -> Learned:
        rate = self.given_lr(lr)
        common = options.model_dump(include=set(DescentOptions.model_fields))
        return descend_locally(bench, rate, options, adjust=to_steps(bench.learned("gd", rate, **common).log, rate))

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: LocalOptions) -> LearnedDraws | None:
        rate = self.given_lr(lr)
        common = DescentOptions(**options.model_dump(include=set(DescentOptions.model_fields)))
        run = descend_draws(benches, rate, common, gd_step, measures=True, reads=False)
        if run is None:
            return None
        return descend_locally_draws(benches, rate, options, adjust=to_steps(run.log, rate))


@LEARNERS.register("gd-matched")
class GdMatched(Learner[LocalOptions]):
    """GD whose every step has, in every layer, the norm of LCGD's step there."""

    title = "gradient descent with layer-causal steps' sizes"
    colour = "@sky"
    options = LocalOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: LocalOptions) -> Learned:
        rate = self.given_lr(lr)
        adjust = to_steps(bench.learned("lcgd", rate, **options.model_dump()).log, rate)
        return descend(bench, bench.lesson.training, rate, options, gd_step, adjust)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: LocalOptions) -> LearnedDraws | None:
        rate = self.given_lr(lr)
        run = descend_locally_draws(benches, rate, options, measures=True, reads=False)
        if run is None:
            return None
        return descend_draws(benches, rate, options, gd_step, to_steps(run.log, rate))


def to_steps(model_run: Log, lr: float) -> Adjust:
    """Scale each layer's step to the norm that another run's step had there; a zero step stays zero."""
    wanted = model_run.step_norm  # [steps, layers], of several draws at once [steps, draws, layers]
    assert wanted is not None
    at = torch.zeros(1, dtype=torch.int64, device=wanted.device)

    def adjust(gradient: Gradient, step: int, norms: Tensor) -> Adjusted:
        if step == 0:  # a run that is repeated begins anew
            at.zero_()
        own = lr * norms
        factors = torch.where(own > 0, wanted.index_select(0, at)[0] / own, torch.zeros_like(own))
        at.add_(1)
        return Adjusted(gradient, factors)

    return adjust
