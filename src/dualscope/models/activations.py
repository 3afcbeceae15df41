"""Activations that transformers computes step by step, by torch's one kernel of the same formula.

GPT-2's, GPT-J's and GPT-Neo's GELU is eight elementwise kernels there: a third of a reading's time on a CPU.
"""

from functools import partial

from torch import nn
from transformers.activations import NewGELUActivation
from transformers.models.bloom.modeling_bloom import BloomGelu, bloom_gelu_forward

gelu_tanh = partial(nn.functional.gelu, approximate="tanh")
bloom_gelu = bloom_gelu_forward  # a function of tensors, where the module is one of a custom backward


def stepwise(hf: nn.Module) -> list[nn.Module]:
    """The modules whose ``forward`` may be ``gelu_tanh``.

    >>> import torch
    >>> slow, x = NewGELUActivation(), torch.linspace(-6, 6, 1000, dtype=torch.float64)
    >>> torch.allclose(gelu_tanh(x), slow(x), rtol=0, atol=1e-14), stepwise(nn.Sequential(slow, nn.ReLU()))
    (True, [NewGELUActivation()])
    """
    return [module for module in hf.modules() if type(module) is NewGELUActivation]


def without_jvp(hf: nn.Module) -> list[nn.Module]:
    """Bloom's, which have a backward of their own and no forward-mode derivative; ``bloom_gelu`` has both."""
    return [module for module in hf.modules() if type(module) is BloomGelu]
