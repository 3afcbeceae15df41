"""A safetensors file written piece by piece: of tensors larger than memory has room for twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

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
