"""Activations that transformers computes step by step, by torch's one kernel of the same formula.

GPT-2's, GPT-J's and GPT-Neo's GELU is eight elementwise kernels there: a third of a reading's time on a CPU.
"""

from functools import partial

from torch import Tensor, nn

gelu_tanh = partial(nn.functional.gelu, approximate="tanh")


def bloom_gelu(x: Tensor) -> Tensor:
    """Bloom's GELU as plain operations: transformers' own, an autograd function, has no forward-mode derivative."""
    from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

    found: Tensor = bloom_gelu_forward(x)
    return found


def stepwise(hf: nn.Module) -> list[nn.Module]:
    """The modules whose ``forward`` may be ``gelu_tanh``.

    >>> import torch
    >>> from transformers.activations import NewGELUActivation
    >>> slow, x = NewGELUActivation(), torch.linspace(-6, 6, 1000, dtype=torch.float64)
    >>> torch.allclose(gelu_tanh(x), slow(x), rtol=0, atol=1e-14), stepwise(nn.Sequential(slow, nn.ReLU()))
    (True, [NewGELUActivation()])
    """
    from transformers.activations import NewGELUActivation

    return [module for module in hf.modules() if type(module) is NewGELUActivation]


def without_jvp(hf: nn.Module) -> list[nn.Module]:
    """Bloom's, which have a backward of their own and no forward-mode derivative; ``bloom_gelu`` has both."""
    from transformers.models.bloom.modeling_bloom import BloomGelu

    return [module for module in hf.modules() if type(module) is BloomGelu]
