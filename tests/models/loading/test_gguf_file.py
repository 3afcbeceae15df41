"""GGUF headers: whatever a file claims is held against its size, in words, before anything is allocated."""

import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.models.loading.gguf_file import gguf_in, is_gguf, read_header
from dualscope.models.loading.source import find
from dualscope.studies.paths import anchored, matching
from tests.models.gguf_files import SIZES, tiny_llama, tokens, write_gguf

HUGE = 2**60


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "model.gguf", tiny_llama(), gguf.GGMLQuantizationType.Q4_1)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def made(tensors: int = 0, fields: list[bytes] | None = None, table: bytes = b"", count: int = -1) -> bytes:
    """A header by hand: what it counts may be another number than what follows."""
    fields = fields or []
    counts = struct.pack("<IQQ", 3, tensors, len(fields) if count < 0 else count)
    return b"GGUF" + counts + b"".join(fields) + table


def tensor(shape: tuple[int, ...], kind: int = 0, begin: int = 0, name: bytes = b"token_embd.weight") -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, begin)


LLAMA = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
LAYERS = text(b"llama.block_count") + struct.pack("<II", 4, 1)
PLAIN = [LLAMA, LAYERS]


def listed(kind: int, count: int, items: bytes = b"") -> bytes:
    return text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, kind, count) + items


HOSTILE = {
    "empty": (b"GGUF", "cut short in its header"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "cut short in its header"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "huge tensors": (made(HUGE), f"counts {HUGE:,} tensors"),
    "huge fields": (made(0, count=HUGE), f"{HUGE:,} fields"),
    "fields that are not there": (made(0, count=9000), "cut short"),
    "tensors that are not there": (made(90_000, PLAIN), "cut short"),
    "huge text": (made(1, [struct.pack("<Q", HUGE)]), "a text of"),
    "huge list of numbers": (made(1, [*PLAIN, listed(0, HUGE)]), "lists have"),
    "many numbers": (made(1, [*PLAIN, listed(12, 1_900_000)]), "cut short"),
    "huge list of texts": (made(1, [*PLAIN, listed(8, 10**9)]), "lists have"),
    "a text of the list": (made(1, [*PLAIN, listed(8, 1, struct.pack("<Q", HUGE))]), "cut short"),
    "list of lists": (made(1, [*PLAIN, listed(9, 3)]), "a list of the unknown type 9"),
    "unknown field": (made(1, [text(b"x") + struct.pack("<I", 99)]), "unknown type 99"),
    "the same field twice": (made(1, [LLAMA, LLAMA]), "'general.architecture' twice"),
    "no architecture": (made(1, [LAYERS], tensor((32, 4))), "does not name its architecture"),
    "no layers": (made(1, [LLAMA], tensor((32, 4))), "None layers"),
    "more layers than tensors": (
        made(1, [LLAMA, text(b"llama.block_count") + struct.pack("<II", 4, 2**31)], tensor((32, 4))),
        "2147483648 layers",
    ),
    "alignment": (
        made(1, [*PLAIN, text(b"general.alignment") + struct.pack("<II", 4, 3)], tensor((32, 4))),
        "alignment is 3",
    ),
    "many dimensions": (made(1, PLAIN, tensor((1,) * 5)), "5 dimensions"),
    "no numbers": (made(1, PLAIN, tensor((0, 4))), "is empty"),
    "huge tensor": (made(1, PLAIN, tensor((2**31, 2**31))), "is cut short: the tensor"),
    "far away": (made(1, PLAIN, tensor((32, 4), begin=HUGE)), "is cut short: the tensor"),
    "twice": (made(2, PLAIN, tensor((1, 1)) * 2), "is there twice"),
    "overlapping": (
        made(2, PLAIN, tensor((32, 4)) + tensor((32, 4), name=b"other")) + bytes(700),
        "overlap",
    ),
    "unknown quantisation": (made(1, PLAIN, tensor((32, 4), kind=77)), "quantisation that is not read"),
    "quantisation of no weights": (made(1, PLAIN, tensor((32, 4), kind=26)), "quantisation that is not read"),
    "rows of half a block": (made(1, PLAIN, tensor((33, 4), kind=3)), "no multiple of 32"),
    "one of several": (
        made(1, [*PLAIN, text(b"split.count") + struct.pack("<II", 4, 3)], tensor((1, 1))),
        "one part of 3; join them first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_meet_words_and_little_memory(tmp_path: Path, name: str) -> None:
    data, said = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert find(str(path)).gguf == path
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=said) as error:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert str(path) in str(error.value)


def test_a_whole_file_says_what_it_is(file: Path) -> None:
    header = read_header(file)
    assert header.architecture == "llama"
    assert header.parameters == sum(weight.numel() for weight in tiny_llama().parameters())
    assert header.sizes() == {
        "num_hidden_layers": SIZES["num_hidden_layers"],
        "hidden_size": SIZES["hidden_size"],
        "num_attention_heads": SIZES["num_attention_heads"],
        "num_key_value_heads": SIZES["num_key_value_heads"],
        "head_dim": None,
        "intermediate_size": SIZES["intermediate_size"],
        "vocab_size": len(tokens()),
    }
    assert header.fields["tokenizer.ggml.tokens"] is None, "lists are passed over"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_was_cut_is_never_read(file: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = file.read_bytes()
    path = tmp_path / "model.gguf"
    padding = gguf.GGUF_DEFAULT_ALIGNMENT  # at the end, after the last tensor
    path.write_bytes(whole[: data.draw(st.integers(4, len(whole) - padding))])
    with pytest.raises(InputError, match="cut short"):
        read_header(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(4, 3000), put=st.binary(min_size=1, max_size=9))
def test_a_header_with_other_bytes_is_read_or_refused(file: Path, tmp_path: Path, at: int, put: bytes) -> None:
    whole = bytearray(file.read_bytes())
    whole[at : at + len(put)] = put
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    try:
        read_header(path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 (it may as well be fine)


def test_a_file_is_known_by_its_first_bytes(file: Path, tmp_path: Path) -> None:
    blob = tmp_path / "sha256-4f"
    blob.write_bytes(file.read_bytes())
    assert find(str(blob)).gguf == blob
    (tmp_path / "notes.gguf").write_text("GG")
    assert not is_gguf(tmp_path / "notes.gguf")
    with pytest.raises(InputError, match="is a file, and not one in GGUF"):
        find(str(tmp_path / "notes.gguf"))
    assert not is_gguf(tmp_path)
    assert not is_gguf(Path("a\0b"))


def test_a_folder_that_holds_one_is_that_one(file: Path, tmp_path: Path) -> None:
    assert gguf_in(tmp_path) is None
    (tmp_path / "one.gguf").write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")  # as repositories of GGUF files have
    assert find(str(tmp_path)).gguf == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").write_bytes(file.read_bytes())
    with pytest.raises(InputError, match=r"holds 2 GGUF files; name one .*: one\.gguf, two\.gguf"):
        find(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert find(str(tmp_path)).folder == tmp_path


def test_without_the_package_the_extra_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"pip install 'dualscope\[gguf\]'"):
        read_header(file)


def test_studies_know_it_by_its_full_path_and_by_stars(file: Path) -> None:
    assert anchored({"models": ["model.gguf", f"mine={file}"]}, file.parent)["models"] == [str(file), f"mine={file}"]
    assert matching(f"{file.parent}/*.gguf") == [str(file)]
