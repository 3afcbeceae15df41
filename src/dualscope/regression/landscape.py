"""The loss along a line through weight space: from where training began to where it ended, and beyond."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dualscope.regression.problems.function_classes import generators
from dualscope.regression.results import Results

PLACES = tuple(i / 10 for i in range(-5, 16))  # 0 is the start, 1 is the end


@torch.no_grad()
def along(
    weights: Tensor, start: Tensor, end: Tensor, loss: Callable[[], Tensor], places: Sequence[float] = PLACES
) -> dict[float, Tensor]:
    """place -> loss [copies]; ``weights`` [copies, ...] is what ``loss`` reads, and is left as it was."""
    before = weights.detach().clone()
    found = {}
    try:
        for place in places:
            weights.copy_(start + place * (end - start))
            found[place] = loss().detach().cpu()
    finally:
        weights.copy_(before)
    return found


def note_landscape(
    results: Results,
    weights: Tensor,
    start: Tensor,
    loss: Callable[[], Tensor],
    series: str,
    seeds: Sequence[int],
    panel: str = "landscape",
) -> None:
    """Rows of the loss on the way from ``start`` to the weights as they are, and in a random direction of that length
    from where they ended, as a control.
    """
    end, begun = weights.detach().clone(), start.to(weights)
    turned = torch.stack(
        [torch.randn(one.shape, generator=g) for one, g in zip(end, generators(seeds, 7), strict=True)]
    )
    turned = turned.to(end)
    length = (end - begun).flatten(1).norm(dim=1) / turned.flatten(1).norm(dim=1)
    away = end - turned * length.view(-1, *[1] * (end.dim() - 1))
    for name, origin in ((series, begun), (f"{series}, random direction", away)):
        for place, losses in along(weights, origin, end, loss).items():
            where = {"panel": panel, "x_name": "start 0, end 1", "x": place}
            results.over_seeds(name, "loss along a line", losses, seeds, **where)
