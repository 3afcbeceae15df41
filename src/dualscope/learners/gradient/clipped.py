"""Layer-causal gradient descent with clipped gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dualscope.descent.gradients import Gradient, dense
from dualscope.descent.loop import Adjust, Adjusted
from dualscope.descent.parameters import layer_of
from dualscope.learners.gradient.lcgd import LcgdOptions, descend_locally
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench

Clip = Literal["global-l2", "linf", "elementwise"]


class ClippedOptions(LcgdOptions):
    clip: Clip = Field("global-l2", description="rescale by the norm over all layers, by the largest entry, or cut")
    threshold: float = Field(12.0, gt=0, description="the largest norm (or entry) that is let through")

    @model_validator(mode="after")
    def _global_clips_are_parallel(self) -> ClippedOptions:
        if self.schedule != "parallel" and self.clip != "elementwise":
            raise ValueError(f"clip: {self.clip} looks at all layers at once, so it needs schedule: parallel")
        return self


@LEARNERS.register("lcgd-clipped")
class LcgdClipped(Learner[ClippedOptions]):
    """LCGD whose gradient is clipped at every step."""

    title = "layer-causal gradient descent, clipped"
    colour = "@orange"
    options = ClippedOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: ClippedOptions) -> Learned:
        clip = clipper(options.clip, options.threshold)
        return descend_locally(bench, self.given_lr(lr), options, clip)


def clipper(clip: Clip, threshold: float) -> Adjust:
    """Nothing here waits for the device: whether a step was cut is counted at the end."""

    def adjust(gradient: Gradient, _step: int, norms: Tensor) -> Adjusted:
        if clip == "elementwise":
            cut = torch.zeros_like(norms)
            whole = dense(gradient)
            for name, value in whole.items():
                layer = layer_of(name)
                assert layer is not None
                cut[layer] += (value.abs() > threshold).any().to(cut.device)
            clipped: Gradient = {name: value.clamp(-threshold, threshold) for name, value in whole.items()}
            return Adjusted(clipped, cut=True, clipped=(cut > 0).to(norms.dtype))
        if clip == "global-l2":
            size = norms.norm()
        else:
            largest = [value.abs().max().to(norms) for value in dense(gradient).values()]
            size = torch.stack(largest).max()
        factor = (threshold / size).clamp(max=1.0)
        return Adjusted(gradient, factor.expand_as(norms), clipped=(factor < 1).to(norms.dtype).expand_as(norms))

    return adjust
