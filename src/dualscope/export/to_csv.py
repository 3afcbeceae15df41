"""A study as plain tables, for spreadsheets and R: a line a learner and task, a line a layer, and every row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from dualscope.core.spreadsheet import as_text
from dualscope.export.tracked import TrackedStudy
from dualscope.studies.run_folder.storage import RunFolder


def to_csv(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """``runs.csv`` is wide, ``curves.csv`` has a line a layer or step, ``rows.csv`` is all that was measured."""
    folder = folder or Path(f"{study.name}-csv")
    folder.mkdir(parents=True, exist_ok=True)
    params = list(dict.fromkeys(name for one in study.runs for name in one.params))
    metrics = list(dict.fromkeys(name for one in study.runs for name in one.metrics))
    lines = [[one.name, one.answer, *map(one.params.get, params), *map(one.metrics.get, metrics)] for one in study.runs]
    _write(folder / "runs.csv", ["name", "answer", *params, *metrics], lines)
    _write(folder / "curves.csv", ["name", *params, "metric", "over", "at", "value"], list(_curves(study, params)))
    tell("all rows")
    pyarrow.csv.write_csv(_texts(RunFolder.open(study.place).rows()), folder / "rows.csv")
    return [f"written: {folder / name}" for name in ("runs.csv", "curves.csv", "rows.csv")]


def _texts(rows: pa.Table) -> pa.Table:
    """With every text as one: few differ, so each is looked at once."""
    for at, field in enumerate(rows.schema):
        if field.type == pa.string():
            coded = rows[field.name].combine_chunks().dictionary_encode()
            texts = pa.array([as_text(text) for text in coded.dictionary.to_pylist()], pa.string())
            rows = rows.set_column(at, field, pa.DictionaryArray.from_arrays(coded.indices, texts).cast(pa.string()))
    return rows


def _curves(study: TrackedStudy, params: Sequence[str]) -> Iterator[list[Any]]:
    for one in study.runs:
        for over, curves in (("layer", one.by_layer), ("step", one.by_step)):
            for metric, curve in curves.items():
                for at, value in curve:
                    yield [one.name, *map(one.params.get, params), metric, over, at, value]


def _write(file: Path, head: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(map(as_text, head))
        writer.writerows(map(as_text, line) for line in lines)
