"""Tensors of traces that memory has no room for: in files that are mapped, so that only what is looked at is held.

At 70 billion weights, 2,000 queries and 80 layers, ``attn_out`` alone is 5 GB a learner. Such a tensor is written to a
file batch by batch as queries are read, layer after layer, because metrics take one layer's queries at a time. The file
has no name any more once it is mapped: it goes with the tensor, also where the process is killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reason
from dualscope.models.reading.memory import in_words


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
