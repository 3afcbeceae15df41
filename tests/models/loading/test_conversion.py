"""dualscope convert: pickles become safetensors, and what is not a table of tensors is refused."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.core.errors import InputError
from dualscope.models.loading import conversion
from dualscope.models.loading.conversion import convert
from dualscope.models.loading.unpickle import unpickle
from tests.models.tiny import tiny_model


def pickled(folder: Path, family: str = "gpt2", head_first: bool = False) -> PreTrainedModel:
    """A model as old checkpoints were saved: pytorch_model.bin, with the tied unembedding in it."""
    hf: PreTrainedModel
    hf, tokenizer = tiny_model(family)
    hf.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    table = hf.state_dict()
    if head_first:
        table = dict(reversed(table.items()))
    torch.save(table, folder / "pytorch_model.bin")
    return hf


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles are read here: a process of their own would import torch for each of them."""
    monkeypatch.setattr(conversion, "_convert_one", lambda _, pickle, target: unpickle(pickle, target))


def _assert_same(folder: Path, hf: torch.nn.Module) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=torch.float32)
    for (name, a), (_, b) in zip(loaded.named_parameters(), hf.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(("family", "head_first"), [("gpt2", True), ("llama", False), ("xglm", False)])
def test_weights_survive(in_this_process: None, tmp_path: Path, family: str, head_first: bool) -> None:
    hf = pickled(tmp_path / "old", family, head_first)
    convert(str(tmp_path / "old"), tmp_path / "new")
    _assert_same(tmp_path / "new", hf)
    assert (tmp_path / "new" / "tokenizer.json").is_file()
    assert not list((tmp_path / "new").glob("*.bin"))


def test_shards_and_command(in_this_process: None, tmp_path: Path) -> None:
    import json

    hf = pickled(tmp_path / "old")
    (tmp_path / "old" / "pytorch_model.bin").unlink()
    table = list(hf.state_dict().items())
    halves = {"pytorch_model-1.bin": table[: len(table) // 2], "pytorch_model-2.bin": table[len(table) // 2 :]}
    for name, half in halves.items():
        torch.save(dict(half), tmp_path / "old" / name)
    weight_map = {key: name for name, half in halves.items() for key, _ in half}
    index = tmp_path / "old" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "old"), str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert "model-00002-of-00002.safetensors" in result.output.replace("\n", "")
    _assert_same(tmp_path / "new", hf)


class Malicious:
    """Runs a command when it is unpickled by an unrestricted reader."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    pickled(tmp_path / "old")
    marker = tmp_path / "ran"
    torch.save({"weight": Malicious(marker)}, tmp_path / "old" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read safely"):
        convert(str(tmp_path / "old"), tmp_path / "new")
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious(marker)))
    with pytest.raises(InputError, match="cannot be read safely"):
        convert(str(tmp_path / "old"), tmp_path / "newer")
    assert not marker.exists()
    assert not list(tmp_path.glob("new*/*.safetensors"))


def test_what_cannot_be_converted_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to convert"):
        convert(str(tmp_path), tmp_path / "new")
    pickled(tmp_path / "old")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        convert(str(tmp_path / "old"), tmp_path / "full")
    with pytest.raises(InputError, match="cannot be made"):
        convert(str(tmp_path / "old"), tmp_path / "full" / "file" / "new")


def test_a_refused_pickle_leaves_nothing_and_can_be_mended(tmp_path: Path) -> None:
    hf = pickled(tmp_path / "old")
    whole = (tmp_path / "old" / "pytorch_model.bin").read_bytes()
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"no pickle")
        with pytest.raises(InputError, match="cannot be read safely"):
            convert(str(tmp_path / "old"), out)
        assert not out.exists() or not any(out.iterdir())
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(whole)
    assert convert(str(tmp_path / "old"), out) == [out / "model.safetensors"]
    assert not list(out.glob(".*"))
    _assert_same(out, hf)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((text, "copy the folder again") for text in ('{"weight_map": {"a"', "{}", "[]", '{"weight_map": []}')),
        *((f'{{"weight_map": {text}}}', "is damaged") for text in ("{}", '{"a": 3}', '{"a": ["x"]}')),
        ('{"weight_map": {"a": "../outside.bin"}}', "outside of the model's folder"),
        ('{"weight_map": {"a": "/outside.bin"}}', "outside of the model's folder"),
        ('{"weight_map": {"a": "absent.bin"}}', "which is missing"),
    ],
)
def test_a_bad_index_is_explained(content: str, said: str, tmp_path: Path) -> None:
    pickled(tmp_path / "old")
    (tmp_path / "old" / "pytorch_model.bin").rename(tmp_path / "outside.bin")
    (tmp_path / "old" / "pytorch_model.bin.index.json").write_text(content)
    with pytest.raises(InputError, match=said):
        convert(str(tmp_path / "old"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
