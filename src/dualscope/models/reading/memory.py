"""How much memory a model needs, and how many queries fit in a batch.

The batch size is a function of the model, the lengths and the device's total memory, never of what happens to
be free: float32 sums change in their last digits with the batch size, and a run must repeat itself.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from dualscope.core.errors import is_out_of_memory
from dualscope.models.loading.device_and_precision import total_memory
from dualscope.models.reading.footprint import DrawBytes, Shape, TrainingDemand, draws_that_fit, largest_tensor

if TYPE_CHECKING:
    from dualscope.models.reading.batches import Batch

T = TypeVar("T")

SHARE = 0.5  # of the memory beside the weights; the rest is the allocator's, the prefix's and the traces'
MOST_QUERIES = 512
MOST_TOKENS = {"cpu": 4096, "cuda": 65536, "mps": 16384}  # beyond, larger batches only cost memory


class _Sized(Protocol):
    """What is looked at of a Model."""

    hf: Any

    @property
    def device(self) -> torch.device: ...

    @property
    def weights_by_device(self) -> Mapping[torch.device, int]: ...

    dtype: torch.dtype
    counters: Counter[str]


@dataclass(frozen=True)
class Memory:
    """Bytes: of the weights, of a context of ``context_tokens``, and of one query being read."""

    weights: int
    context: int
    query: int

    def __str__(self) -> str:
        return f"weights {in_words(self.weights)}, context {in_words(self.context)}, {in_words(self.query)} a query"


def in_words(size: int) -> str:
    """Bytes for people.

    >>> in_words(3 * 2**30 // 2)
    '1.5 GiB'
    >>> in_words(20 * 2**20)
    '20.0 MiB'
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def weight_bytes(hf: torch.nn.Module, dtype: torch.dtype | None = None, device: torch.device | None = None) -> int:
    """Of the parameters and buffers (those on one device), each tied one counted once; also of a module on the meta
    device.

    >>> weight_bytes(torch.nn.Linear(3, 2))
    32
    """
    tensors = {id(tensor): tensor for tensor in (*hf.parameters(), *hf.buffers())}.values()
    return sum(
        tensor.numel() * (dtype.itemsize if dtype and tensor.is_floating_point() else tensor.itemsize)
        for tensor in tensors
        if device is None or tensor.device == device
    )


def estimate(hf: Any, dtype: torch.dtype, own_tokens: int, context_tokens: int) -> Memory:
    """An upper estimate, from the shapes alone.

    A token holds about 24 vectors of the model's width at once in a block (residuals, the wide layer of the
    MLP twice, projections); scores, mask and weights of the attention are three matrices in at least float32;
    keys and values of every layer stay in the cache.
    """
    context, query = _reading(hf.config.get_text_config(), dtype, own_tokens, context_tokens)
    return Memory(weights=weight_bytes(hf, dtype), context=context, query=query)


def _reading(config: Any, dtype: torch.dtype, own_tokens: int, context_tokens: int) -> tuple[int, int]:
    """Bytes of a context, and of one query being read."""
    layers, heads, width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    size = max(dtype.itemsize, 4)
    cache = 2 * layers * width * dtype.itemsize
    block = 24 * own_tokens * width * size
    attention = 3 * heads * own_tokens * (own_tokens + context_tokens) * size
    trace = layers * (2 * width + heads * own_tokens) * size
    logits = 2 * config.vocab_size * size
    return context_tokens * cache, block + attention + trace + logits + own_tokens * cache


def batch_size(model: _Sized, own_tokens: int, context_tokens: int, draws: int = 1) -> int:
    """How many queries of ``own_tokens`` are read at once after a shared context: a power of two.

    With ``draws`` each of them is read so many times at once, each time after another context.
    """
    context, query = _reading(model.hf.config.get_text_config(), model.dtype, own_tokens, context_tokens)
    # Layers may be split over several devices: the one with the least room beside its own weights decides.
    free = min(total_memory(device) - weights for device, weights in model.weights_by_device.items())
    room = SHARE * (free - draws * context)
    most_tokens = MOST_TOKENS.get(model.device.type, MOST_TOKENS["cpu"]) // max(draws * own_tokens, 1)
    most = max(1, min(int(room // (draws * query)), most_tokens, MOST_QUERIES))
    return 1 << (most.bit_length() - 1)


def draws_at_once(model: _Sized, wanted: int, demand: TrainingDemand | None, tokens: int, context_tokens: int) -> int:
    """Into how large groups draws are put that are learned from at once.

    ``demand`` says how each of them is trained on, if at all; ``tokens`` are those of its longest training sequence,
    ``context_tokens`` those of its context.
    """
    config = model.hf.config.get_text_config()
    shape = Shape.of(config.to_dict(), sum(weight.numel() for weight in model.hf.parameters()))
    each = DrawBytes.of(shape, model.dtype.itemsize, demand, tokens, context_tokens)
    return draws_that_fit(wanted, each.total, total_memory(model.device) - weight_bytes(model.hf))


def tensor_limit(model: _Sized) -> int:
    """Bytes of one tensor of a trace that are kept in memory: a larger one goes to a file."""
    return largest_tensor(total_memory(model.device), weight_bytes(model.hf, device=model.device))


def halving(model: _Sized, batch: "Batch", work: "Callable[[Batch], T]") -> "Iterator[tuple[Batch, T]]":
    """A batch's result; where memory runs out, those of its halves, as often as needed."""
    pending = [batch]
    while pending:
        part = pending.pop()
        try:
            result = work(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or len(part.queries) == 1:
                raise
            model.counters["oom retries"] += 1
            half = len(part.queries) // 2
            pending += [part.part(slice(half, None)), part.part(slice(half))]
        else:
            model.counters["batches"] += 1
            yield part, result
            continue
        release(model.device)  # outside the handler: there the error still holds the batch's tensors


def release(device: torch.device) -> None:
    """Give unused memory back to the device, after something did not fit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
