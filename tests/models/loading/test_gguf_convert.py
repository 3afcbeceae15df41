"""GGUF files are models as any other: transformers' own numbers, converted once, known by the file."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from dualscope import Model, compare
from dualscope.cli import app
from dualscope.core.errors import InputError
from dualscope.models.loading import gguf_convert
from dualscope.models.loading.automatic_precision import automatic_dtype
from dualscope.models.loading.digest import model_digest
from dualscope.models.loading.gguf_convert import NOTE, converted, is_whole, kept_at
from dualscope.models.loading.load import load_tokenizer
from dualscope.studies.execute.cost import shape_of
from tests.models.gguf_files import SIZES, tiny_llama, tokens, write_gguf

Q8 = gguf.GGMLQuantizationType.Q8_0
TEXT = "<s>Sentence: a film Label: Positive</s>"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dualscope" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return write_gguf(tmp_path / "models" / "small.Q8_0.gguf", tiny_llama(), Q8)


def logits(hf: Any, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = hf(input_ids=torch.tensor([text])).logits
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_the_numbers_are_those_of_the_module_that_was_written(tmp_path: Path, tied: bool) -> None:
    """In float32 nothing is rounded: rows of queries and keys, ties and the tokenizer are put back as they were."""
    hf = tiny_llama(tie_word_embeddings=tied)
    model = Model.load(str(write_gguf(tmp_path / "model.gguf", hf)), device="cpu")
    ids = model.tokenizer(TEXT)["input_ids"]
    assert [tokens()[i] for i in ids[:2]] == ["<s>", "S"]
    assert "Ġfilm" in [tokens()[i] for i in ids]
    assert model.tied_embeddings is tied
    for (name, a), (_, b) in zip(model.hf.named_parameters(), hf.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    torch.testing.assert_close(logits(model.hf, ids), logits(hf, ids), atol=1e-4, rtol=1e-5)


def test_the_numbers_are_those_of_transformers(file: Path) -> None:
    model = Model.load(str(file), device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = tokenizer(TEXT)["input_ids"]
    assert model.tokenizer(TEXT)["input_ids"] == ids
    assert model.tokenizer.chat_template == tokenizer.chat_template
    torch.testing.assert_close(logits(model.hf, ids), logits(theirs, ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("begins", [True, False])
def test_texts_begin_as_the_file_says(tmp_path: Path, begins: bool) -> None:
    """Qwen's files name a BOS and say that no text begins with it: behind it the model is another."""
    tokenizer, _ = load_tokenizer(str(write_gguf(tmp_path / "model.gguf", tiny_llama(), begins=begins)))
    assert tokenizer.bos_token_id == (1 if begins else None)
    assert tokenizer("a film")["input_ids"] == [tokens().index("a"), tokens().index("Ġfilm")]


def test_the_next_tokens_are_those_of_llama_cpp(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (pip install llama-cpp-python)")
    file = write_gguf(tmp_path / "model.gguf", tiny_llama())
    model = Model.load(str(file), device="cpu")
    ids = model.tokenizer(TEXT)["input_ids"]
    whole = 0  # its type of float32: its cache of keys and values is in float16 where nobody asks
    theirs = llama_cpp.Llama(str(file), logits_all=True, verbose=False, type_k=whole, type_v=whole)
    theirs.eval(ids)
    found = torch.tensor(theirs.scores[: len(ids)])
    expected = logits(model.hf, ids)[0]
    assert torch.equal(found.argsort(-1)[:, -5:], expected.argsort(-1)[:, -5:])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_a_conversion_of_ones_own_is_equal(file: Path, tmp_path: Path) -> None:
    """By the command, which writes what the cache holds; a folder that holds the file alone is the file."""
    done = CliRunner().invoke(app, ["convert", str(file.parent), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "model.safetensors" in done.output
    mine, own = (Model.load(str(path), device="cpu").hf for path in (file, tmp_path / "out"))
    for (name, a), (_, b) in zip(mine.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert not (tmp_path / "out" / NOTE).exists()
    weights, config = ((tmp_path / "out" / name).stat().st_mode for name in ("model.safetensors", "config.json"))
    assert weights == config, "for everybody who may read the other files"


def test_it_is_converted_once_and_known_by_its_content(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called and wherever it lies: Ollama's files have no suffix."""
    first = model_digest(str(file))
    assert not cache.exists(), "its identity, its size and its shape need no conversion"
    assert automatic_dtype(str(file), "cpu") == "float64"
    shape = shape_of(str(file))
    assert shape is not None
    assert (shape.layers, shape.width, shape.kv_width) == (3, 64, 32)
    assert not cache.exists()
    folder = converted(file)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [folder.name]

    def again(*_: object) -> None:
        raise AssertionError("converted twice")

    monkeypatch.setattr(gguf_convert, "_write", again)
    blob = file.parent.parent / "blobs" / "sha256-0123"
    blob.parent.mkdir()
    shutil.copy(file, blob)
    assert converted(blob) == folder
    assert model_digest(str(blob)) == first
    _, positions = load_tokenizer(str(blob))
    assert positions == SIZES["max_position_embeddings"]
    assert Model.load(str(blob), device="cpu").digest == Model.load(str(file), device="cpu").digest


def test_another_file_is_another_model(file: Path) -> None:
    first, folder = model_digest(str(file)), converted(file)
    write_gguf(file, tiny_llama(seed=1), Q8)
    assert model_digest(str(file)) != first
    assert converted(file) != folder


def test_a_damaged_conversion_is_made_anew(file: Path, cache: Path) -> None:
    weights = converted(file) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    assert not is_whole(kept_at(file))
    (cache / f".{weights.parent.name}-killed").mkdir()  # what a process left that was killed
    assert (converted(file) / "model.safetensors").read_bytes() == whole
    assert not list(cache.glob(".*"))


def test_a_conversion_that_fails_leaves_nothing(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_convert, "_save", full)
    with pytest.raises(InputError, match="No space left on device"):
        converted(file)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_no_room_is_said_before_anything_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk)
    with pytest.raises(InputError, match=r"has room for 0\.0 GB; make room there"):
        converted(file)


def test_a_run_and_a_comparison_take_it(file: Path, tmp_path: Path) -> None:
    """From the plan to the rows: the model is called as the file, without its suffix."""
    asked = ["run", "--model", str(file), "--task", "embedded-sst2", "--learner", "gd", "--lr", "0.1"]
    small = ["--shots", "2", "--seeds", "1", "--queries", "3", "--no-report", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*asked, *small, "--variant", "trained", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    import pyarrow.parquet as pq

    names = {
        name
        for cell in (tmp_path / "run" / "cells").glob("*.parquet")
        for name in pq.read_table(cell)["model"].to_pylist()
    }
    assert names == {"small.Q8_0"}
    known = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert model_digest(str(file)) in json.dumps(known)
    result = compare(str(file), "embedded-sst2", ["gd"], shots=2, queries=3, seed=0, lr=0.1)
    assert set(result.layers("sim_aou")) == {"gd"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 10**9}, "larger model than its tensors"),
        ({"embedding_length": 2**20}, "larger model than its tensors"),
        ({"block_count": 4}, "weights are not in it"),
        ({"feed_forward_length": 80}, r"its fields make it \[80, 64\]"),
    ],
)
def test_fields_that_lie_are_refused(tmp_path: Path, fields: dict[str, int], said: str) -> None:
    file = write_gguf(tmp_path / "model.gguf", tiny_llama(), fields=fields)
    with pytest.raises(InputError, match=said):
        converted(file)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(24, 6000), put=st.binary(min_size=1, max_size=4))
def test_what_a_header_hides_from_us_meets_words_in_transformers(
    file: Path, tmp_path: Path, at: int, put: bytes
) -> None:
    whole = bytearray(file.read_bytes())
    whole[at : at + len(put)] = put
    other = tmp_path / "other.gguf"
    other.write_bytes(whole)
    try:
        converted(other)
    except InputError as error:
        assert str(other) in str(error)  # noqa: PT017 (it may as well be fine)


def test_an_architecture_that_nobody_reads_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", tiny_llama(), architecture="nonesuch")
    with pytest.raises(InputError, match="architecture nonesuch"):
        converted(file)
