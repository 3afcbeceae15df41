"""The same model, in weights of other sizes: how far one learning rate moves each layer.

Keys times c and queries divided by c give the same scores; values times c and the output projection divided by c give
the same output. So the model computes what it did, in context or not. A gradient step on keys and values, however,
moves what they do by 1 / c^2 as much. After training, the early layers of our small models are so sensitive that plain
GD breaks them at rates at which the last layers have hardly moved; with a factor for each layer, one rate suits all.
"""

from collections.abc import Sequence
from typing import Any

import torch

from dualscope.training.settings import check_balance


@torch.no_grad()
def rebalance(model: Any, factors: Sequence[float]) -> None:
    """Multiply the keys and values of each layer of a GPT-2 by its factor; powers of two round nothing.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=2)).eval()
    >>> before = model(torch.arange(8)[None]).logits
    >>> rebalance(model, [4, 1])
    >>> bool(torch.equal(model(torch.arange(8)[None]).logits, before))
    True
    """
    blocks = model.transformer.h
    check_balance(factors, len(blocks))
    for block, factor in zip(blocks, factors, strict=True):
        attention = block.attn
        for projection in (attention.c_attn.weight, attention.c_attn.bias):
            query, key, value = projection.chunk(3, dim=-1)
            query /= factor
            key *= factor
            value *= factor
        attention.c_proj.weight /= factor
