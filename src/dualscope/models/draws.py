"""Random numbers of a large module, drawn by all cores.

Torch fills a tensor from one generator on one core: 1.3 billion weights take longer than a study reads with them.
Here a large tensor is filled in pieces of a fixed size, each from a generator of its own, so that the numbers depend
on the seed alone and not on how many cores there are. Small tensors are left to torch.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LARGE, PIECE = 2**22, 2**18
_FILLS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


class PiecewiseDraws(TorchDispatchMode):
    """While active, ``normal_`` and ``uniform_`` fill large contiguous CPU tensors piece by piece, in threads.

    >>> def draw(seed):
    ...     with torch.random.fork_rng(devices=[]), PiecewiseDraws():
    ...         return torch.manual_seed(seed) and torch.empty(LARGE).normal_(0, 2)
    >>> torch.equal(draw(1), draw(1)), torch.equal(draw(1), draw(2)), round(draw(1).std().item(), 2)
    (True, False, 2.0)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own is not typed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _FILLS or not _is_large(args[0]) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        tensor, *bounds = args
        # From torch's own state, so that two tensors of one module differ, and the seed decides all of them.
        first = int(torch.randint(2**31, ()))
        pieces = tensor.detach().view(-1).split(PIECE)

        def fill(index: int) -> None:
            with torch.no_grad():  # a thread has a grad mode of its own
                func(pieces[index], *bounds, generator=torch.Generator().manual_seed(first + index))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, range(len(pieces))))
        return tensor


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() >= LARGE and tensor.is_contiguous()
