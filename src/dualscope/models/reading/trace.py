"""What a learner left at the read position of every query."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reason
from dualscope.models.reading.memory import in_words

# Tensors of traces that memory has no room for: in files that are mapped, so that only what is looked at is held.
#
# At 70 billion weights, 2,000 queries and 80 layers, ``attn_out`` alone is 5 GB a learner. Such a tensor is written
# to a file batch by batch as queries are read, layer after layer, because metrics take one layer's queries at a time.
# The file has no name any more once it is mapped: it goes with the tensor, also where the process is killed.


def room_for(value: Tensor, total: int, limit: int) -> Tensor:
    """Room for ``total`` queries like those of ``value``, [queries, layers, ...]; what is in it is to be written over.

    In a file where it would take more than ``limit`` bytes. Derivatives of forward mode cannot be put into files.
    """
    shape = (total, *value.shape[1:])
    carries = forward_ad.unpack_dual(value).tangent is not None
    if carries or prod(shape) * value.itemsize <= limit:
        return value.new_empty(shape)
    return in_file(shape, value.dtype)


def in_file(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor [queries, layers, ...] on the CPU whose numbers are in a file, a layer's together.

    >>> found = in_file((4, 2, 3), torch.float32)
    >>> found.shape, is_in_file(found), is_in_file(found[:, :1]), is_in_file(found[:, :1].clone())
    (torch.Size([4, 2, 3]), True, True, False)
    """
    queries, layers, *rest = shape
    folder, size = trace_folder(), prod(shape) * dtype.itemsize
    try:
        with tempfile.NamedTemporaryFile(prefix="dualscope-trace-", dir=folder) as file:
            _reserve(file.fileno(), size, folder)
            flat = torch.from_file(file.name, shared=True, size=prod(shape), dtype=dtype)
    except OSError as error:
        raise InputError(
            f"{in_words(size)} of a trace do not fit into memory, and not into {folder} ({reason(error)}); set "
            "TMPDIR to a folder with more room, or ask for fewer queries"
        ) from None
    return flat.view(layers, queries, *rest).transpose(0, 1)


def is_in_file(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are in a file: its own, or one that it is a view of."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().filename is not None


def rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some queries of a tensor [queries, layers, ...]; in a file, if that is where they were."""
    rows = rows.to(tensor.device)
    if not is_in_file(tensor) or not len(rows):
        return tensor[rows]
    found = in_file((len(rows), *tensor.shape[1:]), tensor.dtype)
    for layer in range(tensor.shape[1]):
        found[:, layer] = tensor[rows, layer]
    return found


def trace_folder() -> str:
    """TMPDIR; else /var/tmp, which is on a disk where /tmp may be memory."""
    lasting = "/var/tmp"
    asked = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return lasting if not asked and os.access(lasting, os.W_OK) else tempfile.gettempdir()


def _reserve(file: int, size: int, folder: str | Path) -> None:
    """All of it now: a mapped file that finds the disk full later kills the process."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


# A safetensors file written piece by piece: of tensors larger than memory has room for twice.


PIECE = 2**26  # bytes that are brought to the CPU and written at once
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def stream(tensors: Mapping[str, Tensor], path: Path | str, metadata: Mapping[str, str]) -> None:
    """What ``safetensors.torch.save_file`` writes, without a copy of all tensors on the CPU.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stream({"one": torch.arange(6.0).view(2, 3).T}, f"{folder}/file", {})
    ...     load_file(f"{folder}/file")["one"].tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    # Wide numbers first, so that each tensor begins at a multiple of its numbers' size.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in ordered:
        tensor, begin = tensors[name], end
        end += tensor.numel() * tensor.itemsize
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in ordered:
            for piece in pieces(tensors[name]):
                file.write(piece.reshape(-1).view(torch.uint8).numpy().data)


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Some rows of a tensor after others, on the CPU, each at most ``PIECE`` bytes (or one row)."""
    if not tensor.ndim or not tensor.numel():
        yield tensor.detach().cpu().reshape(-1)
        return
    row = tensor[0].numel() * tensor.itemsize
    for part in tensor.detach().split(max(1, PIECE // row)):
        yield part.cpu().contiguous()


@dataclass(frozen=True, repr=False)
class Trace:
    """Everything that metrics see of a learner. All tensors live on one device, but for large ones that memory has no
    room for: these are in files (`dualscope.models.reading.trace`), and a part of one is taken to ``device``.

    Scores are right-aligned: a query's last token stands in the last column, and the columns before its first
    token are NaN, so that traces of the same queries line up whatever stood before the query.

    ``label_logprobs`` are log-probabilities among all tokens, so that their exponentials sum to less than 1 over the
    classes; ``label_logprobs_at_layer`` are normalised over the classes (they sum to 1), however many tokens a label
    has: a layer's read-out needs no more of the unembedding than the labels' rows.

    >>> from dualscope import Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=4, queries=6), model.tokenizer, model.max_positions)
    >>> trace = model.read(lesson, model.prefix(lesson.context))
    >>> trace.attn_out.shape, trace.label_logprobs.shape
    (torch.Size([6, 6, 192]), torch.Size([6, 2]))
    """

    attn_out: Tensor  # [queries, layers, width]
    attn_scores: Tensor  # [queries, layers, heads, tokens]
    lengths: Tensor  # [queries]
    residual: Tensor  # [queries, layers, width]
    label_logprobs: Tensor  # [queries, classes]: the mean log-probability of each label's tokens, of all tokens
    labels: Tensor  # [queries]
    query_ids: tuple[str, ...]
    label_logprobs_at_layer: Tensor | None = (
        None  # [queries, layers, classes]: the same from each layer, of the classes
    )
    first_window: int | None = None  # how many tokens layer 0 sees, its own among them; None: all
    extras: dict[str, Tensor] = field(default_factory=dict)  # what was asked for beyond the above

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.lengths.device

    @property
    def is_in_files(self) -> bool:
        """Whether memory has no room for all of it."""
        return any(map(is_in_file, (self.attn_out, self.attn_scores, self.residual, *self.extras.values())))

    @property
    def predictions(self) -> Tensor:
        """The most probable class of every query: [queries]."""
        return self.label_logprobs.argmax(-1)

    @property
    def correct(self) -> Tensor:
        """Which queries are predicted correctly: [queries], boolean."""
        return self.predictions == self.labels

    def __repr__(self) -> str:
        """One line: its tensors are looked at by name."""
        queries, layers, width = self.attn_out.shape
        classes = self.label_logprobs.shape[-1]
        more = f", also {', '.join(self.extras)}" if self.extras else ""
        return f"Trace({queries} queries, {layers} layers of width {width}, {classes} classes{more})"

    def __len__(self) -> int:
        return len(self.labels)

    def map(self, change: Callable[[Tensor], Tensor]) -> Trace:
        """The same trace with a function applied to each of its tensors."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors: dict[str, Any] = {n: change(value) for n, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **tensors, extras={name: change(value) for name, value in self.extras.items()})

    def to(self, device: str | torch.device) -> Trace:
        return self.map(lambda tensor: tensor.to(device))

    def save(self, path: Path | str) -> None:
        """As one safetensors file, some queries after others; query ids, which are text, go to its header."""
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)} | {
            f"extras.{name}": value for name, value in self.extras.items()
        }
        header = {"query_ids": "\n".join(self.query_ids)}
        if self.first_window is not None:
            header["first_window"] = str(self.first_window)
        stream(tensors, path, header)

    @classmethod
    def load(cls, path: Path | str) -> Trace:
        """What `save` wrote."""
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            header = file.metadata() or {}
        ids, window = tuple(header["query_ids"].split("\n")), header.get("first_window")
        extras = {name.removeprefix("extras."): tensors.pop(name) for name in list(tensors) if "." in name}
        return cls(**tensors, query_ids=ids, first_window=None if window is None else int(window), extras=extras)
