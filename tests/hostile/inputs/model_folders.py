"""Model folders: configurations, weights, indices and tokenizers of which one thing is spoilt."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.inputs.bad import Bad

CONFIGS: dict[str, list[Any]] = {
    "n_layer": [0, -1, 10**9, 2.5, "two", None, [], True, 10**30, {}],
    "n_embd": [0, -1, 33, 10**9, "x", None, [], 2.5],
    "n_head": [0, -1, 7, "x", None, [], 10**9, 2.5],
    "vocab_size": [0, -1, 1, 10**9, "x", None, [], 2.5],
    "n_positions": [-1, 0, "x", [], 10**12],
    "model_type": ["", "bert", "none-such", "t5", "vit", 3, None, [], {}],
    "activation_function": ["none-such", 3, [], {}],
    "quantization_config": [{"quant_method": "bitsandbytes"}, {"quant_method": "none"}, 3, "x"],
    "layer_norm_epsilon": ["x", [], {}],
}
FILES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n",
    "cut short": b'{"model_type": "gpt2", ',
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "a text": b'"gpt2"',
    "an empty object": b"{}",
    "binary": b"\x00\xff\xfe\x01",
    "utf-16": '{"model_type": "gpt2"}'.encode("utf-16"),
    "deep": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "html": b"<html>sign in</html>",
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
    "many digits": b'{"n_layer": ' + b"9" * 5000 + b"}",
}


def _bad(
    name: str, spoil: Callable[[Path], object], said: str = "model|tokenizer|config", command: str = "doctor"
) -> Bad:
    arguments = {
        "doctor": ("doctor", "--model", "{here}/model", "--device", "cpu"),
        "plan": ("run", "--model", "{here}/model", "--task", "embedded-sst2", "--lr", "0.1", "--dry-run"),
        "validate": ("validate", "embedded-sst2", "--model", "{here}/model"),
    }[command]
    return Bad(f"model {name} ({command})", arguments, said, lambda place: spoil(place.model()))


def _configured(field: str, value: Any) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        fields = json.loads((model / "config.json").read_text()) | {field: value}
        kept = {key: known for key, known in fields.items() if known is not None or key != field}
        (model / "config.json").write_text(json.dumps(kept))

    return spoil


def _replaced(name: str, content: bytes) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        (model / name).write_bytes(content)

    return spoil


def _gone(name: str) -> Callable[[Path], object]:
    return lambda model: (model / name).unlink()


def _folder(name: str) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return spoil


def _loop(name: str) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        (model / name).unlink()
        (model / name).symlink_to(name)

    return spoil


def _cut(share: float) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        file = model / "model.safetensors"
        data = file.read_bytes()
        file.write_bytes(data[: int(share * len(data))])

    return spoil


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """The weights with another header."""

    def spoil(model: Path) -> None:
        file = model / "model.safetensors"
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return spoil


def _first(header: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = header[min(name for name in header if name.endswith("c_attn.weight"))]
    return found


def _index(content: object) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        (model / "model.safetensors").rename(model / "part.safetensors")
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (model / "model.safetensors.index.json").write_bytes(text)

    return spoil


def _not_finite(value: float) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        file = model / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-4:] = np.float32(value).tobytes()
        file.write_bytes(data)

    return spoil


def _kept_as(dtype: str, width: int) -> Callable[[dict[str, Any]], object]:
    """A weight of as many bytes in another type."""

    def change(header: dict[str, Any]) -> None:
        entry = _first(header)
        begin, end = entry["data_offsets"]
        entry.update(dtype=dtype, shape=[(end - begin) // width])

    return change


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "without a weight": lambda header: header.pop(min(name for name in header if name.endswith("c_attn.weight"))),
    "another shape": lambda header: _first(header).update(shape=list(reversed(_first(header)["shape"]))),
    "a larger shape": lambda header: _first(header).update(shape=[10**6, 10**6]),
    "a negative shape": lambda header: _first(header).update(shape=[-1, 5]),
    "a shape of text": lambda header: _first(header).update(shape="x"),
    "an unknown type": lambda header: _first(header).update(dtype="X99"),
    "offsets beyond": lambda header: _first(header).update(data_offsets=[0, 10**12]),
    "offsets reversed": lambda header: _first(header).update(data_offsets=[100, 0]),
    "offsets missing": lambda header: _first(header).pop("data_offsets"),
    "int8": _kept_as("I8", 1),
    "uint8": _kept_as("U8", 1),
    "int32": _kept_as("I32", 4),
    "float8": _kept_as("F8_E4M3", 1),
    "renamed": lambda header: [
        header.update({f"x.{name}": header.pop(name)}) for name in list(header) if name != "__metadata__"
    ],
    "emptied": lambda header: header.clear(),
}
INDICES: dict[str, object] = {
    "no object": [],
    "no map": {},
    "an empty map": {"weight_map": {}},
    "a list for a map": {"weight_map": ["a"]},
    "a number for a file": {"weight_map": {"a": 3}},
    "a missing file": {"weight_map": {"a": "none.safetensors"}},
    "a file outside": {"weight_map": {"a": "../part.safetensors"}},
    "a full path": {"weight_map": {"a": "/etc/passwd.safetensors"}},
    "a pickle": {"weight_map": {"a": "weights.bin"}},
    "a NUL": {"weight_map": {"a": "a\0.safetensors"}},
    "a folder": {"weight_map": {"a": "sub/part.safetensors"}},
    "text": b"not json",
    "cut short": b'{"weight_map": {"a": "part',
}
TOKENIZERS: dict[str, bytes] = {
    **FILES,
    "no model": b'{"version": "1.0"}',
    "an unknown model": b'{"version": "1.0", "model": {"type": "None"}}',
    "a vocabulary of text": b'{"version": "1.0", "model": {"type": "BPE", "vocab": "x", "merges": []}}',
    "merges of nothing": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}',
    "negative ids": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "ids beyond": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 99999999999999999999}, "merges": []}}',
}

TABLE = [
    _bad(f"{field}: {json.dumps(value)[:30]}", _configured(field, value))
    for field, values in CONFIGS.items()
    for value in values
]
TABLE += [
    _bad(f"config {name}", _replaced("config.json", content), command=command)
    for name, content in FILES.items()
    for command in ("doctor", "plan", "validate")
    if not (command == "plan" and name == "an empty object")
]
TABLE += [
    _bad(f"weights {name}", _replaced("model.safetensors", content), command=command)
    for name, content in FILES.items()
    for command in ("doctor", "plan")
]
TABLE += [
    _bad(f"weights cut at {share}", _cut(share), command=command)
    for share in (0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 0.999999)
    for command in ("doctor", "plan")
]
TABLE += [_bad(f"weights {name}", _header(change)) for name, change in HEADERS.items()]
TABLE += [_bad(f"weights {value}", _not_finite(value), "are not finite") for value in (float("nan"), float("inf"))]
TABLE += [
    _bad(f"index {name}", _index(content), command=command)
    for name, content in INDICES.items()
    for command in ("doctor", "plan")
]
TABLE += [
    _bad(f"tokenizer {name}", _replaced("tokenizer.json", content), command="validate")
    for name, content in TOKENIZERS.items()
]
TABLE += [
    _bad(f"{what} {name}", spoil(name), command=command)
    for name in ("config.json", "model.safetensors")
    for what, spoil in (("without", _gone), ("a folder for", _folder), ("a loop for", _loop))
    for command in ("doctor", "plan")
]
