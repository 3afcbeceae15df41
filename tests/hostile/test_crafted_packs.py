"""Packs that a hand has changed: every reader says so in words, and none gives rows that were never packed.

Files are changed and stay valid Parquet with the notes that they had. A forger who renews seal and digests as well
writes another run, which nobody can tell: there only words are asked for, never a traceback.
"""

import base64
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dualscope.core.errors import InputError
from dualscope.studies.run_folder.cell_files import parquet_bytes
from dualscope.studies.run_folder.packed_cells import DIGESTS, SCHEMAS, SEAL, noted, read_part, seal_of
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.run_folder.test_packed_cells import NAMES, made

Change = Callable[[pa.Table], pa.Table]
LARGE = 2**62


def _with(name: str, *values: Any) -> Change:
    """A column of which the first values are others."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        kept = table[name].to_pylist()[len(values) :]
        column = pa.array([*values, *kept], table.schema.field(name).type)
        return table.set_column(at, table.schema.field(name), column)

    return change


def _about(name: str, value: str) -> Change:
    return lambda table: table.replace_schema_metadata({**noted(table), name: value})


def _as(name: str, kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, pa.nulls(table.num_rows, kind))

    return change


def _twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def _reverse(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


SCHEMA = base64.b64encode(pa.schema([("nothing", pa.int8())]).serialize().to_pybytes()).decode()
INDEX: dict[str, Change] = {
    "first moved": _with("first", 1),
    "first below nothing": _with("first", -1),
    "first beyond the end": _with("first", 10**6),
    "first beyond all numbers": _with("first", LARGE),
    "first is nothing": _with("first", None),
    "fewer rows": _with("rows", 0),
    "more rows": _with("rows", 3),
    "rows below nothing": _with("rows", -3),
    "rows beyond all numbers": _with("rows", LARGE),
    "rows are nothing": _with("rows", None),
    "queries moved": _with("first_query", 1),
    "queries below nothing": _with("first_query", -2),
    "queries at nothing": _with("first_query", None),
    "fewer queries": _with("queries", 1),
    "more queries": _with("queries", 4),
    "queries beyond all numbers": _with("queries", LARGE),
    "no queries": _with("queries", None),
    "a schema that is not there": _with("schema", 99),
    "a schema below nothing": _with("schema", -1),
    "no schema": _with("schema", None),
    "another schema": _with("schema", 1),
    "schemas that are none": _about(SCHEMAS, '["AAAA", "AAAA", "AAAA"]'),
    "schemas of another table": _about(SCHEMAS, json.dumps([SCHEMA] * 3)),
    "schemas that are no list": _about(SCHEMAS, "{}"),
    "schemas that are no JSON": _about(SCHEMAS, "["),
    "schemas that are no text": _about(SCHEMAS, "[1, 2, 3]"),
    "digests that are no JSON": _about(DIGESTS, "["),
    "digests that are a list": _about(DIGESTS, "[]"),
    "data elsewhere": _about("data", "../../../study"),
    "cells swapped": lambda table: _with("cell", *reversed(table["cell"].to_pylist()))(table),
    "a cell twice": lambda table: _with("cell", *[table["cell"][0].as_py()] * 2)(table),
    "a cell that is a path": _with("cell", "../../x"),
    "a cell without a name": _with("cell", ""),
    "a cell that is nothing": _with("cell", None),
    "another model": _with("model", "other"),
    "no model": _with("model", None),
    "another task": _with("task", "../.."),
    "no time": _with("written", None),
    "no time at all": _with("written", float("nan")),
    "no notes": _with("notes", None),
    "other notes": _with("notes", [("seconds", "99")]),
    "no digest": _with("rows_sha256", None),
    "entries reversed": _reverse,
    "entries twice": _twice,
    "an entry less": lambda table: table.slice(1),
    "a column less": lambda table: table.drop_columns(["first"]),
    "a column of another type": _as("first", pa.string()),
    "a column more": lambda table: table.append_column("more", table["first"]),
}
DATA: dict[str, Change] = {
    "another value": lambda table: _with(table.column_names[-1], *table[table.column_names[-1]].to_pylist()[1:2])(
        _with("cell", table["cell"][0].as_py())(table)
    ),
    "rows reversed": _reverse,
    "rows twice": _twice,
    "a row less": lambda table: table.slice(1),
    "no rows": lambda table: table.slice(0, 0),
    "a column less": lambda table: table.drop_columns([table.column_names[-1]]),
    "no cells": lambda table: table.drop_columns(["cell"]),
    "cells of another type": _as("cell", pa.int64()),
    "a column of another type": lambda table: _as(table.column_names[-1], pa.list_(pa.int8()))(table),
    "a column twice": lambda table: table.append_column("cell", table["cell"]),
    "rows of no cell": _with("cell", None),
    "rows of another cell": _with("cell", "f" * 20),
    "no notes": lambda table: table.replace_schema_metadata(None),
}
CASES = [
    (file, name, renewed)
    for file, changes in (("index", INDEX), ("rows", DATA), ("queries", DATA))
    for name in changes
    for renewed in (False, True)
]
CHOSEN = CASES if os.environ.get("DUALSCOPE_WHOLE") else random.Random(2).sample(CASES, 30)


def _index_of(root: Path) -> tuple[Path, pa.Table]:
    file = root / "packed/index/00000001.parquet"
    return file, read_part(file.read_bytes(), "00000001")


def _changed(root: Path, file: str, name: str, renewed: bool) -> bool:
    """Change a file of the first part; whether anything of it is another."""
    index, table = _index_of(root)
    if file == "index":
        changed = INDEX[name](table)
        about = noted(changed)
        if renewed:
            about[SEAL] = seal_of(changed, about)
        index.write_bytes(parquet_bytes(changed.replace_schema_metadata(about)))
        return not changed.equals(table) or noted(changed) != noted(table)
    stem = noted(table)["data"]
    (data,) = (root / "packed" / file).rglob(f"{stem}.parquet")
    before = read_part(data.read_bytes(), stem)
    changed = DATA[name](before)
    data.write_bytes(parquet_bytes(changed))
    if renewed:
        about = noted(table)
        about[DIGESTS] = json.dumps({**json.loads(about[DIGESTS]), file: hashlib.sha256(data.read_bytes()).hexdigest()})
        about[SEAL] = seal_of(table, about)
        index.write_bytes(parquet_bytes(table.replace_schema_metadata(about)))
    return not changed.equals(before, check_metadata=True)


def _told(read: Callable[[Any], pa.Table], what: Any) -> str:
    return repr(read(what).to_pydict())


def _asked(run: RunFolder) -> dict[str, Any]:
    """What every way of reading gives: values, or words."""
    ways: dict[str, Callable[[], Any]] = {
        "rows": lambda: repr(run.rows().to_pydict()),
        "SQL": lambda: repr(
            run.query("select cell, model, task, seed, value, layer from rows order by all").to_pydict()
        ),
        "SQL of queries": lambda: repr(run.query("select cell, query from queries order by all").to_pydict()),
    }
    for cell in NAMES:
        ways[f"rows of {cell}"] = partial(_told, run.rows, [cell])
        ways[f"queries of {cell}"] = partial(_told, run.queries, cell)
    found = {}
    for way, ask in ways.items():
        try:
            found[way] = ask()
        except InputError as error:
            found[way] = None if "cannot be read" in str(error) else f"not in words: {error}"
    return found


def test_there_are_enough() -> None:
    assert len(CASES) > 100


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A packed run, and what it says when it is asked."""
    run = made(tmp_path_factory.mktemp("packed") / "run")
    pack(run, run)
    place = Path(str(run.folder))
    found = _asked(RunFolder.open(place))
    assert [way for way in found if found[way] is None] == [f"queries of {NAMES[5]}"]  # the one that has none
    return place, found


@pytest.mark.parametrize(("file", "name", "renewed"), CHOSEN)
def test_a_pack_that_was_changed(
    packed: tuple[Path, dict[str, Any]], file: str, name: str, renewed: bool, tmp_path: Path
) -> None:
    whole, before = packed
    shutil.copytree(whole, tmp_path / "run")
    changed = _changed(tmp_path / "run", file, name, renewed)
    found = _asked(RunFolder.open(tmp_path / "run"))
    if not renewed:
        assert all(found[way] in (None, before[way]) for way in before)
        assert not changed or None in found.values()
    # A run says what is damaged, computes it again and deletes nothing outside; packing again goes on.
    again = RunFolder.open(tmp_path / "run")
    list(again.pack.discard_broken())
    again.discard(again.unreadable(again.stored()))
    assert all(value is not None or way.startswith("queries") for way, value in _left(again).items())
    pack(again, again)


def _left(run: RunFolder) -> dict[str, Any]:
    return {f"rows of {cell}": run.rows([cell]) for cell in run.stored()}
