"""Variants of a trained model that have unlearned something: controls for what training contributes.

Every draw is made on the CPU in float32 from ``init_seed`` alone and then copied, so that a variant has the
same weights on every device and in every precision, and torch's own random state is left as it was.
"""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError, suggest
from dualscope.core.words import VARIANTS, Variant
from dualscope.models.draws import Draws, Weights
from dualscope.models.families import family_of
from dualscope.models.model import Model
from dualscope.models.parts import Part

DRAWN: tuple[Variant, ...] = ("untrained", "trained-embeddings")  # the same draw of a seed for both
ABOUT: dict[Variant, str] = {
    "trained": "the checkpoint as it is",
    "untrained": "every weight drawn anew from the architecture's own initialiser",
    "trained-embeddings": "embeddings (input, position, output) and all norms kept, the rest drawn anew",
    "shuffled": "each weight matrix's own entries permuted: the scale is kept, the structure lost",
}


def check(variant: str) -> None:
    """Refuse an unknown name.

    >>> check("untraned")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: unknown variant 'untraned': did you mean untrained or trained? \
Known: shuffled, trained, trained-embeddings, untrained.
    """
    if variant not in VARIANTS:
        raise InputError(f"unknown variant '{variant}': {suggest(variant, VARIANTS)}")


@torch.no_grad()
def apply(hf: Any, variant: str, init_seed: int = 0, draws: Draws | None = None) -> None:
    """Turn a trained module into a variant of itself, in place. Tied embeddings stay tied.

    ``draws`` remembers what was drawn: the variants of a seed share it.
    """
    check(variant)
    if variant == "shuffled":
        _shuffle(hf, init_seed)
    elif variant in DRAWN:
        kept = _outside_blocks_and_norms(hf) if variant == "trained-embeddings" else set()
        _redraw(hf, (draws or Draws()).of(hf, init_seed), kept)


def _redraw(hf: Any, weights: Weights, kept: set[str]) -> None:
    """Overwrite the parameters with those of a fresh module of the same configuration."""
    for name, parameter in hf.named_parameters():
        if name in kept:
            continue
        if name not in weights:
            raise InputError(f"the weight '{name}' is not part of {type(hf).__name__}: no variant can redraw it")
        parameter.copy_(weights[name].to(parameter.dtype))  # narrowed first: less to bring to the device


def _outside_blocks_and_norms(hf: nn.Module) -> set[str]:
    """Names of the parameters that are embeddings or norms.

    Outside the blocks a language model has only embeddings (with their projections and norms), the final norm and the
    unembedding; inside, norms are known by their class, because their names differ everywhere.
    """
    blocks = family_of(hf).blocks + "."
    inside = {name for name, _ in hf.named_parameters() if name.startswith(blocks)}
    norms = {
        f"{path}.{name}"
        for path, module in hf.named_modules()
        if "norm" in type(module).__name__.lower()
        for name, _ in module.named_parameters(recurse=False)
    }
    return ({name for name, _ in hf.named_parameters()} - inside) | norms


def _shuffle(hf: nn.Module, seed: int) -> None:
    for name, matrix in _matrices(hf):
        generator = torch.Generator().manual_seed(crc32(f"{seed} {name}".encode()))
        order = torch.randperm(matrix.numel(), generator=generator).to(matrix.device)
        matrix.copy_(matrix.flatten()[order].view(matrix.shape))


def _matrices(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight matrix as a view that can be written to; query, key and value of a fused one are three."""
    parameters = dict(hf.named_parameters())
    fused: dict[str, list[Part]] = {}
    for part in Model(hf, None).parts(roles=("query", "key", "value")):
        fused.setdefault(part.parameter, []).append(part)
    for name, parameter in parameters.items():
        if parameter.ndim > 1:
            for part in fused.get(name, []):
                yield part.name, part.view(parameter)
            if name not in fused:
                yield name, parameter
