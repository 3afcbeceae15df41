"""Variants of a trained model that have unlearned something: controls for what training contributes.

Every draw is made on the CPU in float32 from ``init_seed`` alone and then copied, so that a variant has the
same weights on every device and in every precision, and torch's own random state is left as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dualscope.core.errors import InputError, suggest
from dualscope.core.words import VARIANTS, Variant
from dualscope.models.architecture.families import family_of
from dualscope.models.architecture.parts import Part
from dualscope.models.model import Model

# Random numbers of a large module, drawn by all cores, and a draw that is kept or made ahead.
#
# Torch fills a tensor from one generator on one core: 1.3 billion weights take longer than a study reads with them.
# Here a large tensor is filled in pieces of a fixed size, each from a generator of its own, so that the numbers
# depend on the seed alone and not on how many cores there are. Small tensors are filled as torch fills them.


LARGE, PIECE = 2**22, 2**18
_FILLS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}
SHARE = 1 / 8  # of the machine's memory, for a draw that is kept

Weights = Mapping[str, Tensor]


class PiecewiseDraws(TorchDispatchMode):
    """While active, what this thread draws comes from a generator of this seed, as it would after
    ``torch.manual_seed``; torch's own state stays as it is. ``normal_`` and ``uniform_`` fill large contiguous CPU
    tensors piece by piece, in threads.

    >>> def draw(seed):
    ...     with PiecewiseDraws(seed):
    ...         return torch.empty(LARGE).normal_(0, 2)
    >>> torch.equal(draw(1), draw(1)), torch.equal(draw(1), draw(2)), round(draw(1).std().item(), 2)
    (True, False, 2.0)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own is not typed
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if func not in _FILLS or not _is_large(args[0]):
            return _with_generator(func)(*args, **kwargs | {"generator": self.generator})
        tensor, *bounds = args
        # Two tensors of one module differ, and a module is its seed's.
        first = int(torch.randint(2**31, (), generator=self.generator))
        pieces = tensor.detach().view(-1).split(PIECE)

        def fill(index: int) -> None:
            with torch.no_grad():  # a thread has a grad mode of its own
                func(pieces[index], *bounds, generator=torch.Generator().manual_seed(first + index))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, range(len(pieces))))
        return tensor


def _with_generator(func: Any) -> Any:
    """An operation in the form that is given a generator: ``randn`` has another one for it."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    return func.overloadpacket.generator


def _is_large(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() >= LARGE and tensor.is_contiguous()


def drawn(hf: Any, seed: int) -> Weights:
    """The parameters of a module of the same configuration, built from the seed on the CPU in float32."""
    with torch.device("cpu"), PiecewiseDraws(seed):
        # What transformers calls for a model without a checkpoint: the architecture's own initialiser.
        fresh = type(hf)._from_config(deepcopy(hf.config), dtype=torch.float32)
        attention = getattr(hf.config, "dualscope_attention", None)
        if attention is not None:
            from dualscope.models.attention_kinds import apply as change_attention

            change_attention(fresh, attention)
    return {name: parameter.detach() for name, parameter in fresh.named_parameters()}


class Draws:
    """Remembers the last draw, which the variants of a seed share, and makes the next one while a GPU works.

    A draw is made ahead in a thread. Transformers builds modules with process-wide settings, so it is waited for
    before a model is loaded (`settle`), and none is begun where tensors are float64 by default.
    """

    def __init__(self, draw: Callable[[Any, int], Weights] = drawn) -> None:
        self._draw = draw
        self._key: Hashable = None
        self._made: Future[Weights] | None = None
        self._thread = ThreadPoolExecutor(1, "draws")

    def of(self, hf: Any, seed: int) -> Weights:
        key = _key(hf, seed)
        if self._made is not None and self._key == key:
            return self._made.result()
        self.forget()
        found = self._draw(hf, seed)
        if _fits(hf):
            self._key, self._made = key, Future()
            self._made.set_result(found)
        return found

    def prepare(self, hf: Any, seed: int) -> None:
        """Begin a draw that will be asked for next; what is remembered goes."""
        if not _fits(hf) or self._key == _key(hf, seed) or torch.get_default_dtype() != torch.float32:
            return
        self.forget()
        self._key, self._made = _key(hf, seed), self._thread.submit(self._draw, hf, seed)

    def settle(self) -> None:
        """Wait for a draw that is being made."""
        if self._made is not None:
            self._made.exception()

    def forget(self) -> None:
        self.settle()
        self._key = self._made = None


def _key(hf: nn.Module, seed: int) -> Hashable:
    return type(hf), hf.config.to_json_string(use_diff=False), seed  # type: ignore[union-attr, operator]


def _fits(hf: nn.Module) -> bool:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 * sum(parameter.numel() for parameter in hf.parameters()) <= SHARE * memory


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
