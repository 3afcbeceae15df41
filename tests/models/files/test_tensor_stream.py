"""Files written piece by piece are safetensors files, and no piece is larger than it may be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from dualscope.models.files import tensor_stream
from dualscope.models.files.tensor_stream import NAMES, stream


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = torch.randint(0, 2, shape) if dtype == torch.bool else torch.randint(0, 100, shape)
    return values.to(dtype)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5),
    kinds=st.lists(st.sampled_from(list(NAMES)), min_size=5, max_size=5),
    piece=st.sampled_from([1, 7, 64, 2**26]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, ...]], kinds: list[torch.dtype], piece: int
) -> None:
    wanted = {str(i): drawn(shape, kinds[i]) for i, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("stream") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_stream, "PIECE", piece)
        stream(wanted, path, {"ids": "ä\nb"})
    found = load_file(path)
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(str(path), "pt") as file:
        assert file.metadata() == {"ids": "ä\nb"}


def test_no_more_than_a_piece_is_brought_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[int] = []
    cpu: Any = Tensor.cpu

    def counted(tensor: Tensor) -> Tensor:
        brought.append(tensor.nbytes)
        found: Tensor = cpu(tensor)
        return found

    monkeypatch.setattr(Tensor, "cpu", counted)
    monkeypatch.setattr(tensor_stream, "PIECE", 1000)
    large = torch.zeros(100, 3, 8).transpose(1, 2)
    stream({"large": large}, tmp_path / "file", {})
    assert max(brought) <= 1000
    assert sum(brought) == large.nbytes
    assert (tmp_path / "file").stat().st_size > large.nbytes
