"""Attention sinks (gpt-oss): weights that a learned logit takes away, and their gradient."""

import torch

from dualscope.models import Model
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from tests.models.unlisted import sink_model

TOKENS = torch.tensor([[1, 7, 9, 4, 11, 6, 8, 5]])


def test_the_gradient_passes_through_the_sinks() -> None:
    model = Model(*sink_model())
    named = model.hf.named_parameters()
    weights = [weight for name, weight in named if "k_proj.w" in name or "v_proj.w" in name]
    expected = torch.autograd.grad(model.hf(TOKENS).logits[0, -1, 5], weights)
    with capturing(model, Session()):
        found = torch.autograd.grad(model.hf(TOKENS).logits[0, -1, 5], weights)
    assert len(weights) == 6
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-4
