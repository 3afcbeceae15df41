"""GGUF files, the format of llama.cpp: which files are one, and what their headers say. No torch.

Everything that a header claims is checked against the file's own size before another library reads it, so that no
count in it can ask for more memory than the file deserves.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reading, reason

MAGIC = b"GGUF"
SUFFIX = ".gguf"
VERSIONS = (2, 3)
MOST_TENSORS, MOST_FIELDS = 100_000, 10_000
MOST_ITEMS = 2_000_000  # of all arrays together: the largest vocabularies with their merges have 1.3 million
LONGEST_NAME, LONGEST_TEXT = 1024, 2**24
LONGEST_KEPT = 256  # characters of a field's text that are kept: templates are longer, and are not needed here
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The format's types of numbers, as struct spells them."""
TEXT, ARRAY = 8, 9
PLAIN = "F32, F16 or BF16"


class GgufTensor(NamedTuple):
    """One entry of a file's table of tensors; the shape as torch has it, rows first."""

    shape: tuple[int, ...]
    kind: int
    begin: int  # from where the data begin


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself: its fields that are numbers or short texts, and its table of tensors."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"])

    @property
    def parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors.values())

    def field(self, name: str) -> Any:
        """A field of the architecture's own: ``field("block_count")`` is ``llama.block_count``."""
        return self.fields.get(f"{self.architecture}.{name}")

    def sizes(self) -> dict[str, Any]:
        """The model's sizes by the names that a config.json has for them."""
        embedding = self.tensors.get("token_embd.weight")
        return {
            "num_hidden_layers": self.field("block_count"),
            "hidden_size": self.field("embedding_length"),
            "num_attention_heads": self.field("attention.head_count"),
            "num_key_value_heads": self.field("attention.head_count_kv"),
            "head_dim": self.field("attention.key_length"),
            "intermediate_size": self.field("feed_forward_length"),
            "vocab_size": embedding.shape[0] if embedding is not None else None,
        }


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF does, whatever it is called: Ollama's have no suffix."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def gguf_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder; None where there is none."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except OSError:  # who reads the folder's other files says why not
        return None
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(f"'{folder}' holds {len(found)} GGUF files; name one of them with its folder: {names}")
    return found[0] if found else None


def read_header(path: Path) -> GgufHeader:
    """A file's header, checked against the file's size; an explanation where it cannot be a language model's.

    Raises:
        InputError: Cut short, of another version or byte order, counts that the file cannot hold, unknown types.
    """
    with reading(path, "copy the file again"):
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(file, size, path).header()


class _Reader:
    """Reads a header front to back. Texts and arrays are passed over, not kept."""

    def __init__(self, file: IO[bytes], size: int, path: Path) -> None:
        self.file, self.size, self.path = file, size, path
        self.items = 0

    def header(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            self._refuse(f"is no GGUF file (it does not begin with {MAGIC.decode()})")
        version = self._number("I")
        if version not in VERSIONS:
            swapped = struct.unpack(">I", struct.pack("<I", version))[0] in VERSIONS
            self._refuse(
                "is written for big-endian machines; convert it again for little-endian ones"
                if swapped
                else f"is GGUF of version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read"
            )
        tensors, fields = self._number("Q"), self._number("Q")
        if tensors > MOST_TENSORS or fields > MOST_FIELDS:
            self._refuse(
                f"is damaged: its header counts {tensors:,} tensors and {fields:,} fields; copy the file again"
            )
        said = self._fields(fields)
        table = self._table(tensors)
        alignment = said.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self._refuse(f"is damaged: its alignment is {alignment!r}, and no power of two")
        start = self.file.tell()
        self._check_fields(said, table)
        self._check_table(table, start + -start % alignment)
        return GgufHeader(said, table)

    def _fields(self, count: int) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for _ in range(count):
            name = self._text(LONGEST_NAME)
            if name in said:
                self._refuse(f"is damaged: it has the field '{name}' twice; copy the file again")
            said[name] = self._value(name, self._number("I"))
        return said

    def _value(self, name: str, kind: int) -> Any:
        """A number or a short text; None for a long text or an array, which are passed over."""
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == TEXT:
            text = self._text(LONGEST_TEXT)
            return text if len(text) <= LONGEST_KEPT else None
        if kind != ARRAY:
            self._refuse(f"is damaged: the field '{name}' is of the unknown type {kind}")
        kind, count = self._number("I"), self._number("Q")
        self.items += count
        if self.items > MOST_ITEMS:
            self._refuse(
                f"is damaged: with the field '{name}' its lists have {self.items:,} items; at most "
                f"{MOST_ITEMS:,} are read"
            )
        if kind in NUMBERS:
            self._pass(count * struct.calcsize(NUMBERS[kind]))
        elif kind == TEXT:
            for _ in range(count):
                self._pass(self._number("Q"))
        else:
            self._refuse(f"is damaged: the field '{name}' is a list of the unknown type {kind}")
        return None

    def _table(self, count: int) -> dict[str, GgufTensor]:
        table: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self._text(LONGEST_NAME)
            dimensions = self._number("I")
            if not 1 <= dimensions <= 4 or name in table:
                self._refuse(
                    f"is damaged: the tensor '{name}' "
                    + ("is there twice" if name in table else f"has {dimensions} dimensions")
                )
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
            if 0 in shape:
                self._refuse(f"is damaged: the tensor '{name}' is empty, {list(shape)}")
            table[name] = GgufTensor(shape, self._number("I"), self._number("Q"))
        return table

    def _check_fields(self, said: dict[str, Any], table: dict[str, GgufTensor]) -> None:
        architecture = said.get("general.architecture")
        if not isinstance(architecture, str) or not architecture.isprintable() or not architecture:
            self._refuse("does not name its architecture (general.architecture); it is no language model")
        parts = said.get("split.count")
        if isinstance(parts, int) and parts > 1:
            self._refuse(
                f"is one part of {parts}; join them first with llama.cpp: llama-gguf-split --merge FIRST OUT.gguf"
            )
        layers = said.get(f"{architecture}.block_count")
        if not isinstance(layers, int) or isinstance(layers, bool) or not 1 <= layers <= len(table):
            self._refuse(
                f"is no language model that can be read: {layers!r} layers ({architecture}.block_count) and "
                f"{len(table)} tensors"
            )

    def _check_table(self, table: dict[str, GgufTensor], start: int) -> None:
        """Every tensor's data lie in the file and are their own: so the file bounds what all of them can take."""
        first = {tensor.kind: name for name, tensor in reversed(table.items())}
        blocks = {
            kind: block_of(kind, f"model file '{self.path}': the tensor '{name}'") for kind, name in first.items()
        }
        whole = 0
        for name, tensor in table.items():
            items, length = blocks[tensor.kind]
            if tensor.shape[-1] % items:
                self._refuse(
                    f"is damaged: rows of the tensor '{name}' have {tensor.shape[-1]} numbers, no multiple of {items}"
                )
            taken = prod(tensor.shape) // items * length
            whole += taken
            if start + tensor.begin + taken > self.size:
                self._refuse(
                    f"is cut short: the tensor '{name}' {list(tensor.shape)} ends at byte "
                    f"{start + tensor.begin + taken:,}, and the file at {self.size:,}; copy it again"
                )
        if start + whole > self.size:
            self._refuse(
                f"is damaged: its tensors take {whole:,} bytes and overlap in a file of {self.size:,}; copy it again"
            )

    def _take(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) < count:
            self._refuse("is cut short in its header; copy it again")
        return data

    def _pass(self, count: int) -> None:
        here = self.file.tell()
        if count > self.size - here:
            self._refuse("is cut short in its header, or damaged; copy it again")
        self.file.seek(count, 1)

    def _number(self, kind: str) -> Any:
        form = struct.Struct(f"<{kind}")
        return form.unpack(self._take(form.size))[0]

    def _text(self, longest: int) -> str:
        length = self._number("Q")
        if length > longest:
            self._refuse(f"is damaged: a text of {length:,} bytes in its header; copy the file again")
        return self._take(length).decode("utf-8", "replace")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"model file '{self.path}' {why}")


def block_of(kind: int, what: str) -> tuple[int, int]:
    """How many numbers a block of a quantisation holds, and in how many bytes.

    Raises:
        InputError: The package `gguf` is missing, or does not know how to read this quantisation.
    """
    try:
        import gguf
    except ImportError:
        raise InputError(
            f"{what}: reading GGUF needs the package gguf; install it with pip install 'dualscope[gguf]'"
        ) from None
    import numpy as np

    try:
        known = gguf.GGMLQuantizationType(kind)
        items, length = gguf.GGML_QUANT_SIZES[known]
        gguf.dequantize(np.zeros((1, length), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise InputError(
            f"{what} is kept in a quantisation that is not read (type {kind}: {reason(error)}); use a file in "
            f"{PLAIN}, or one of llama.cpp's usual ones (Q4_0 to Q8_0, Q2_K to Q6_K)"
        ) from None
    return int(items), int(length)
