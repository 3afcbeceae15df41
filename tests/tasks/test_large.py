"""Splits of gigabytes: the same examples as from memory, whatever the way they were read, and the same errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualscope import Episode, InputError, Task
from dualscope.tasks import large, sources

ROWS: list[dict[str, Any]] = [
    {"text": f'line {i}\u2028 \N{SNOWMAN} "q" {"x" * (i % 37)}', "label": i % 3 % 2, "other": [i]} for i in range(500)
]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A task whose training file is read as if it were large."""
    monkeypatch.setattr(sources, "LARGE", 10)
    monkeypatch.setattr(large, "ROWS", 64)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(rows: list[dict[str, Any]], suffix: str = ".jsonl", labels: str = "no, 'yes'") -> Path:
        file = tmp_path / f"data{suffix}"
        if suffix == ".jsonl":
            file.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        elif suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=50)
        else:
            import pandas

            pandas.DataFrame(rows).to_csv(file, index=False, sep="," if suffix == ".csv" else "\t")
        path = tmp_path / "task.yaml"
        path.write_text(
            f"name: t\nsource: {{files: {{all: data{suffix}}}}}\nsplits: {{train: all, evaluation: all}}\n"
            f"template: 'T {{text}} L'\nlabels: ['{labels.split(', ')[0]}', {labels.split(', ')[1]}]\n"
        )
        return path

    return make


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("balanced", [False, True])
def test_the_same_draw_as_from_memory(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, suffix: str, balanced: bool
) -> None:
    path = write(ROWS, suffix)
    streamed = Task.load(path)
    assert isinstance(streamed.train, large.LargeSplit)
    monkeypatch.setattr(sources, "LARGE", 2**30)
    held = Task.load(path)
    assert isinstance(held.train, tuple)
    assert tuple(streamed.train) == held.train
    assert streamed.train[-1] == held.train[-1]
    assert streamed.train[3:7] == held.train[3:7]
    one, two = (Episode.draw(task, 8, seed=3, queries=20, balanced=balanced) for task in (streamed, held))
    assert (one.demonstrations, one.queries) == (two.demonstrations, two.queries)


def test_one_digest_however_it_is_read(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Task.load(write(ROWS)).digest
    assert Task.load(write(ROWS)).digest == first
    monkeypatch.setattr(large, "ROWS", 7)
    assert Task.load(write(ROWS, ".parquet")).digest == first
    irregular = [
        {**row, "text": row["text"]} | ({"label": str(row["label"])} if i == 400 else {}) for i, row in enumerate(ROWS)
    ]
    assert Task.load(write(irregular)).digest == first  # a label as text: read row by row
    assert Task.load(write([*ROWS[:-1], {**ROWS[-1], "label": 1 - ROWS[-1]["label"]}])).digest != first
    assert Task.load(write([ROWS[1], ROWS[0], *ROWS[2:]])).digest != first


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "x", "label": 9}, "line 901: label 9 is outside the label words"),
        ({"text": None, "label": 0}, "line 901: field 'text' must be text, found None"),
        ({"label": 0}, "line 901: the template's {text} needs the column 'text'"),
        ({"text": "x"}, "line 901: the label needs the column 'label'"),
        ({"text": "x", "label": None}, "the label is missing (found None)"),
    ],
)
def test_a_bad_row_is_named(write: Callable[..., Path], row: dict[str, Any], said: str) -> None:
    task = Task.load(write([*ROWS[:450], row, *ROWS[450:]]))
    with pytest.raises(InputError) as caught:
        len(task.train)
    assert said in str(caught.value)


def test_a_line_that_is_cut_short(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(ROWS)
    data = (tmp_path / "data.jsonl").read_bytes()
    (tmp_path / "data.jsonl").write_bytes(data[:-9])
    with pytest.raises(InputError, match=r"data\.jsonl, line 999: not JSON"):
        len(Task.load(path).train)
    (tmp_path / "data.jsonl").write_bytes(data[:5000] + b"\xff" + data[5000:])
    with pytest.raises(InputError, match="not UTF-8 \\(byte 5000\\)"):
        len(Task.load(path).train)
    (tmp_path / "data.jsonl").write_bytes(b"\n" * 50)
    with pytest.raises(InputError, match="the split is empty"):
        len(Task.load(path).train)


def test_the_cache_is_of_this_very_file(write: Callable[..., Path], tmp_path: Path) -> None:
    first = Task.load(write(ROWS)).train[0]
    assert Task.load(write(ROWS)).train[0] == first
    changed = Task.load(write([{**ROWS[0], "text": "another"}, *ROWS[1:]]))
    assert changed.train[0].fields["text"] == "another"
    kept = {path.suffix for path in (tmp_path / "cache/dualscope/splits").iterdir()}
    assert kept == {".arrow", ".digest"}
