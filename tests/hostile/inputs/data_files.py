"""Data files that are cut short, garbled, or not what their names say."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.inputs.bad import ROWS, TASK, Bad, Place

GOOD = json.dumps(ROWS[0]).encode()
LINES: dict[str, bytes] = {
    "no object": b"[1, 2]",
    "a number": b"3",
    "a text": b'"x"',
    "null": b"null",
    "half a line": GOOD[:-4],
    "single quotes": b"{'text': 'x', 'label': 0}",
    "a comma": GOOD[:-1] + b",}",
    "two on a line": GOOD + GOOD,
    "not UTF-8": b'{"text": "\xff\xfe", "label": 0}',
    "a NUL": b'{"text": "a\0b", "label": 0}',
    "deep": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b', "label": 0}',
    "a surrogate": b'{"text": "\\ud800", "label": 0}',
    "no text": b'{"label": 0}',
    "no label": b'{"text": "x"}',
    "null text": b'{"text": null, "label": 0}',
    "true for a text": b'{"text": true, "label": 0}',
    "a list for a text": b'{"text": ["x"], "label": 0}',
    "a map for a text": b'{"text": {"x": 1}, "label": 0}',
    "null label": b'{"text": "x", "label": null}',
    "unlabelled": b'{"text": "x", "label": -1}',
    "an empty label": b'{"text": "x", "label": ""}',
    "label too high": b'{"text": "x", "label": 2}',
    "label word": b'{"text": "x", "label": "ugly"}',
    "label half": b'{"text": "x", "label": 0.5}',
    "label list": b'{"text": "x", "label": [0]}',
    "label map": b'{"text": "x", "label": {"a": 0}}',
    "label NaN": b'{"text": "x", "label": NaN}',
    "label infinite": b'{"text": "x", "label": Infinity}',
    "label huge": b'{"text": "x", "label": ' + b"9" * 5000 + b"}",
    "unquoted": b"text: x, label: 0",
}
TABLES: dict[str, tuple[bytes, str]] = {
    "no columns": (b"\n", "csv"),
    "header alone": (b"text,label\n", "csv"),
    "other columns": (b"a,b\n1,2\n", "csv"),
    "too few": (b"text,label\nx\n", "csv"),
    "too many": (b"text,label\nx,0,1\n", "csv"),
    "an open quote": (b'text,label\n"x,0\n', "csv"),
    "a quote inside": (b'text,label\n"x"y,0\n', "csv"),
    "twice a column": (b"text,text,label\nx,y,0\n", "csv"),
    "semicolons": (b"text;label\nx;0\n", "csv"),
    "tabs in csv": (b"text\tlabel\nx\t0\n", "csv"),
    "commas in tsv": (b"text,label\nx,0\n", "tsv"),
    "not UTF-8": (b"text,label\n\xff,0\n", "csv"),
    "no such label": (b"text,label\nx,ugly\n", "csv"),
    "no label": (b"text,label\nx,\n", "csv"),
    "a field too long": (b'text,label\n"' + b"x" * 200_000 + b'",0\n', "csv"),
    "tsv too few": (b"text\tlabel\nx\n", "tsv"),
    "jsonl as csv": (b'{"text": "x", "label": 0}\n', "csv"),
    "parquet as csv": (b"PAR1\x15\x04\x15\xff", "csv"),
    "empty csv": (b"", "csv"),
    "empty tsv": (b"", "tsv"),
    "empty jsonl": (b"", "jsonl"),
    "blank jsonl": (b"\n \n\n", "jsonl"),
    "empty parquet": (b"", "parquet"),
    "text as parquet": (b"text,label\nx,0\n", "parquet"),
    "csv as jsonl": (b"text,label\nx,0\n", "jsonl"),
}


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, write_page_checksum=True, compression="NONE")
    return sink.getvalue()


WHOLE = _parquet({"text": [f"text number {i} of a table" for i in range(300)], "label": [i % 2 for i in range(300)]})
FIRST_PAGE = WHOLE.index(b"text number 7 of")  # inside a page's data, which its checksum covers


def _data(name: str, content: bytes, suffix: str) -> Bad:
    def make(place: Place) -> None:
        place.task()
        place.write(f"bad.{suffix}", content)
        place.write("mine.yaml", TASK.replace("train.jsonl", f"bad.{suffix}"))

    said = rf"bad\.{suffix}"
    return Bad(f"data {suffix} {name}", ("validate", "{here}/mine.yaml"), said, make)


def _flipped(at: int) -> bytes:
    content = bytearray(WHOLE)
    content[at] ^= 0xFF
    return bytes(content)


_rng = np.random.default_rng(17)
TABLE = [_data(name, b"\n".join([GOOD, line, GOOD]), "jsonl") for name, line in LINES.items()]
TABLE += [_data(name, content, suffix) for name, (content, suffix) in TABLES.items()]
TABLE += [
    _data(f"cut at {at}", WHOLE[:at], "parquet")
    for at in sorted({int(i) for i in _rng.integers(1, len(WHOLE) - 1, 25)})
]
TABLE += [_data(f"flipped at {at}", _flipped(at), "parquet") for at in (len(WHOLE) - 1, len(WHOLE) - 6)]
TABLE += [
    _data(f"flipped at {at}", _flipped(at), "parquet")
    for at in sorted({FIRST_PAGE + int(i) for i in _rng.integers(0, 3000, 20)})
]
PARQUETS: dict[str, dict[str, list[Any]]] = {
    "without rows": {"text": [], "label": []},
    "without text": {"label": [0, 1]},
    "without label": {"text": ["x", "y"]},
    "nulls": {"text": ["x", None], "label": [0, 1]},
    "lists": {"text": [["x"], ["y"]], "label": [0, 1]},
    "bytes": {"text": [b"x", b"\xff"], "label": [0, 1]},
    "labels of other classes": {"text": ["x", "y"], "label": [0, 7]},
    "half labels": {"text": ["x", "y"], "label": [0.0, 0.5]},
    "maps": {"text": [{"a": 1}, {"a": 2}], "label": [0, 1]},
}
TABLE += [_data(f"parquet {name}", _parquet(columns), "parquet") for name, columns in PARQUETS.items()]
