"""The weights while a learner moves them: always the originals plus the change."""

import pytest
import torch
from torch import Tensor

from dualscope.descent.parameters import Slot, Whole
from dualscope.descent.trainable import Weights
from tests.learners.setting import wrapped


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "phi3"])  # fused in two ways, apart, fused
@pytest.mark.parametrize("whole", [False, True])
def test_weights_are_the_originals_plus_the_change(family: str, whole: bool) -> None:
    model = wrapped(family)
    before = {name: weight.detach().clone() for name, weight in model.hf.named_parameters()}
    slots: list[Slot] = [Whole(name) for name in before] if whole else [*model.parts()]
    draw = torch.Generator().manual_seed(0)
    expected = {name: weight.clone() for name, weight in before.items()}
    with Weights(model, slots) as weights:
        for moved in (slots, slots[:3], slots[2:5]):
            direction = {
                slot.name: torch.randn(slot.get(before[slot.parameter]).shape, generator=draw).double()
                for slot in moved
            }
            weights.move({**direction}, -0.01)
            for slot in moved:
                slot.add_(expected[slot.parameter], -0.01 * direction[slot.name])
            _agree(dict(model.hf.named_parameters()), expected, 1e-14)
        for slot in slots:  # exactly, so that applying the change later gives the same weights
            now = model.hf.get_parameter(slot.parameter).detach()
            change = weights.delta()[slot.name]
            assert torch.equal(slot.get(now), slot.get(before[slot.parameter]) + change)
        weights.reset()
        _agree(dict(model.hf.named_parameters()), before)
        weights.move({slots[0].name: torch.ones_like(slots[0].get(before[slots[0].parameter]))})
    _agree(dict(model.hf.named_parameters()), before)


def _agree(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    for name, weight in expected.items():
        torch.testing.assert_close(found[name].detach(), weight, rtol=tolerance, atol=tolerance)
