"""How steps are taken, and what is given up, one thing after another, where memory is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint

from dualscope.descent.samples import Sample

if TYPE_CHECKING:
    from torch import nn

    from dualscope.models.model import Model


@dataclass(frozen=True)
class MemoryMode:
    """One way to take the steps of a training run."""

    recorded: bool = False  # as a CUDA graph: fast, and its memory is its own until it is done
    checkpointed: bool = False  # activations are computed again in the backward pass
    given_up: str = ""  # what is said where memory ran out in this mode
    last: bool = False


def memory_modes(model: Model, batches: Sequence[Sequence[Sample]], tangent: bool) -> Iterator[MemoryMode]:
    """From the fastest to the one that needs the least memory; ``tangent``: for steps of the linearised model."""
    if is_graphable(model, batches):
        yield MemoryMode(recorded=True, given_up="memory was short: steps were not recorded as a CUDA graph")
    yield MemoryMode(last=tangent, given_up="memory was short: activations were computed again in the backward pass")
    if not tangent:
        yield MemoryMode(checkpointed=True, last=True)


def is_graphable(model: Model, batches: Sequence[Sequence[Sample]]) -> bool:
    """On one GPU, in an architecture whose masks we know, for one demonstration a step."""
    known = model.family.tested and not model.has_experts
    one = len(model.devices) == 1 and model.device.type == "cuda"
    return one and known and all(len(batch) == 1 for batch in batches)


@contextmanager
def checkpointed(model: Model) -> Iterator[None]:
    """Inside ``with`` the backward pass keeps each block's input alone, and runs the block again."""
    with ExitStack() as stack:
        for block in model.blocks:
            before = block.__dict__.get("forward")
            again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
            block.__dict__["forward"] = again
            stack.callback(_put_back, block, before)
        yield


def _put_back(block: nn.Module, before: Any) -> None:
    del block.__dict__["forward"]
    if before is not None:
        block.__dict__["forward"] = before
