"""Two changes that look alike and are not: what a cosine of changes says where nothing was learned.

z is the zero-shot output of a head, c its output after demonstrations, g after some other learner.
"""

import torch
from torch import Tensor

from dualscope.theory.icl_dual import attend, demonstration_mass
from dualscope.theory.identity import Draw, TwoSides, identity


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Over the last axis: [..., d] twice -> [...]."""
    found: Tensor = (left * right).sum(-1) / (left.norm(dim=-1) * right.norm(dim=-1))
    return found


def plain_likeness(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """cos(c - z, g - z): [..., d] -> [...]."""
    return cosine(c - z, g - z)


def normalised_likeness(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """The same after each output is scaled to unit norm. Both changes then share a part of -z."""
    z, c, g = (output / output.norm(dim=-1, keepdim=True) for output in (z, c, g))
    return cosine(c - z, g - z)


def dilution(scores: Tensor, values: Tensor, demonstrations: int) -> TwoSides:
    """Left: what demonstrations change, Attn(all) - Attn(rest). Right: lam (Attn(demos) - Attn(rest)). Both [..., d].

    scores [..., n], values [..., n, d]; the first `demonstrations` tokens are the demonstrations. Softmax gives them
    the weight lam, and takes it from the rest: -lam Attn(rest) is there whatever the demonstrations say.

    >>> draw = Draw(0)
    >>> dilution(draw.normal(9), draw.normal(9, 4), demonstrations=6).error < 1e-12
    True
    """
    demos = attend(scores[..., :demonstrations], values[..., :demonstrations, :])
    rest = attend(scores[..., demonstrations:], values[..., demonstrations:, :])
    lam = demonstration_mass(scores, demonstrations).unsqueeze(-1)
    return TwoSides(attend(scores, values) - rest, lam * (demos - rest))


def orthogonal_updates(draw: Draw, width: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """z and two updates r, r' of |r|^2 = |r'|^2 = 3 |z|^2, each orthogonal to the other two. [width] each."""
    basis = torch.linalg.qr(draw.normal(width, 3).double()).Q.T.to(draw.dtype)
    z = 2.5 * basis[0]  # of any size
    return z, 3**0.5 * 2.5 * basis[1], 3**0.5 * 2.5 * basis[2]


@identity("dilution", "c − z = λ (Attn(demos) − z): ICL shrinks what was there by λ", "exact counterpart")
def _dilution(draw: Draw) -> TwoSides:
    return dilution(2 * draw.normal(3, 49), draw.normal(3, 49, 4), demonstrations=40)


@identity("dilution-alone", "demonstrations of value 0: cos(c − z, −z) = 1", "exact counterpart")
def _alone(draw: Draw) -> TwoSides:
    scores, values = draw.normal(3, 49), draw.normal(3, 49, 4)
    z = attend(scores[:, 40:], values[:, 40:])
    values[:, :40] = 0  # nothing is said, and weight is taken all the same
    return TwoSides(cosine(attend(scores, values) - z, -z), torch.ones(3, dtype=draw.dtype))


@identity(
    "random-quarter",
    "|r|² = |r′|² = 3|z|², orthogonal: normalised changes have cosine 1/4, plain ones 0",
    "Deutch et al. 2024",
)
def _quarter(draw: Draw) -> TwoSides:
    z, first, second = orthogonal_updates(draw)
    found = [likeness(z, z + first, z + second) for likeness in (normalised_likeness, plain_likeness)]
    return TwoSides(torch.stack(found), torch.tensor([0.25, 0.0], dtype=draw.dtype))


@identity(
    "random-quarter-drawn",
    "independent random updates of that size, width 1024: 1/4 on the mean of 400 draws",
    "Deutch et al. 2024",
    0.02,
    0.02,
    "statistical",
)
def _drawn(draw: Draw) -> TwoSides:
    z, first, second = (draw.normal(400, 1024) for _ in range(3))
    z, first, second = (v / v.norm(dim=-1, keepdim=True) for v in (z, first, second))
    root = 3**0.5
    found = normalised_likeness(z, z + root * first, z + root * second).mean()
    return TwoSides(found, torch.tensor(0.25, dtype=draw.dtype))
