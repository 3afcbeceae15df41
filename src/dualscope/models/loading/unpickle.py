"""The process that reads one pickle: ``python -I unpickle.py IN.bin OUT.safetensors``."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def unpickle(pickle: Path, target: Path) -> None:
    """Read a table of tensors with torch's restricted reader and write it as safetensors.

    Tensors of one storage are written once, under the first name; a view of a part of another is copied.
    """
    table = torch.load(pickle, map_location="cpu", weights_only=True)
    if isinstance(table, dict) and isinstance(table.get("state_dict"), dict):
        table = table["state_dict"]
    if not isinstance(table, dict) or not all(isinstance(value, Tensor) for value in table.values()):
        raise ValueError("it is not a table of tensors")
    written: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in table.items():
        place = (tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in written:
            continue
        written[place] = name
        tensors[name] = tensor.clone().contiguous()
    save_file(tensors, str(target), {"format": "pt"})


if __name__ == "__main__":
    unpickle(Path(sys.argv[1]), Path(sys.argv[2]))
