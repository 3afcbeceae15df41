"""A fingerprint of a model's weights: two runs with the same digest used the same numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a finished study is recognised by its files' digests without importing torch
    import torch

_SHA256 = re.compile("[0-9a-f]{64}")


def digest_of_files(files: Iterable[Path]) -> str:
    """sha256 over the sha256 of each file's content, in the order of their names.

    The hub's cache keeps large files under their own sha256, so a cached model of any size costs nothing.
    """
    whole = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        whole.update(_content(file).encode())
    return whole.hexdigest()


def _content(file: Path) -> str:
    real = file.resolve()
    if real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
        return real.name
    with real.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of_module(module: torch.nn.Module) -> str:
    """sha256 over the names, shapes, dtypes and bytes of a module's parameters, for a model built in memory.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> before = digest_of_module(layer)
    >>> _ = torch.nn.init.zeros_(layer.bias)
    >>> before == digest_of_module(layer), len(before)
    (False, 64)
    """
    import torch

    whole = hashlib.sha256()
    for name, tensor in module.named_parameters():
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # Viewed as bytes, because numpy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        whole.update(flat.numpy().data)
    return whole.hexdigest()
