"""Damaged files of cells: noticed, and computed again; what only cannot be read is left alone."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualscope import run_study
from dualscope.studies.run_folder.cell_files import CELL, FEW_ROWS, parquet_bytes, read_cell


def test_an_unreadable_cell_is_computed_again(fields: dict[str, Any], tmp_path: Path) -> None:
    first = run_study(fields, tmp_path, device="cpu")
    before = repr(first.run.rows().to_pydict())
    broken = sorted(first.run.stored())[0]
    file = tmp_path / f"cells/{broken}.parquet"
    file.write_bytes(file.read_bytes()[:100])
    second = run_study(fields, tmp_path, device="cpu")
    assert second.computed == [broken]
    assert any(broken in note and "could not be read" in note for note in second.notes)
    assert repr(second.run.rows().to_pydict()) == before


@pytest.mark.parametrize("content", [None, b"bad"])
def test_a_cell_without_its_queries_is_computed_again(
    fields: dict[str, Any], tmp_path: Path, content: bytes | None
) -> None:
    run = run_study(fields, tmp_path, device="cpu").run
    victim = sorted((tmp_path / "queries").iterdir())[0]
    victim.unlink()
    if content is not None:
        victim.write_bytes(content)
    again = run_study(fields, tmp_path, device="cpu")
    assert again.computed == [victim.stem]
    assert run.queries(victim.stem).num_rows


@pytest.mark.parametrize("name", ["cells", "queries"])
def test_a_read_error_is_no_damage(fields: dict[str, Any], tmp_path: Path, name: str) -> None:
    """A disk's error or a missing permission (here: a name that leads to itself) deletes nothing."""
    run_study(fields, tmp_path, device="cpu")
    victims = sorted((tmp_path / name).iterdir())[:1]
    victims[0].rename(tmp_path / "kept")
    victims[0].symlink_to(victims[0].name)
    result = run_study(fields, tmp_path, device="cpu")
    assert result.computed == []
    assert [failure.key for failure in result.failures] == [victims[0].stem]
    assert "nothing was deleted" in result.failures[0].reason
    assert victims[0].is_symlink()


def test_the_file_of_another_cell_or_schema_is_noticed(fields: dict[str, Any], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = run_study(fields, tmp_path, device="cpu").run
    before = repr(run.rows().to_pydict())
    one, two, three, *_ = sorted((tmp_path / "cells").iterdir())
    one.write_bytes(two.read_bytes())
    pq.write_table(pa.table({"a": [1]}), three)
    queries = sorted((tmp_path / "queries").iterdir())
    queries[3].write_bytes(queries[4].read_bytes())
    result = run_study(fields, tmp_path, device="cpu")
    assert sorted(result.computed) == sorted([one.stem, three.stem, queries[3].stem])
    assert sum("of another cell" in note for note in result.notes) == 2
    assert sum("not a cell's rows" in note for note in result.notes) == 1
    assert repr(result.run.rows().to_pydict()) == before


@pytest.mark.parametrize("rows", [0, 3, FEW_ROWS, FEW_ROWS + 1])
def test_a_small_file_has_no_dictionaries_and_reads_the_same(rows: int) -> None:
    """They cost more than they save where a column has a handful of values."""
    columns = {"model": ["ü"] * rows, "value": [float("nan")] * rows, "layer": pa.nulls(rows, pa.int64())}
    table = pa.table(columns).replace_schema_metadata({CELL: "a"})
    data = parquet_bytes(table)
    again = read_cell(data, "a")
    assert repr(again.to_pydict()) == repr(table.to_pydict())
    assert again.schema.equals(table.schema, check_metadata=True)
    about = pq.ParquetFile(pa.BufferReader(data)).metadata
    for group in range(about.num_row_groups):
        column = about.row_group(group).column(0)
        assert (column.has_dictionary_page, column.compression) == (
            (rows > FEW_ROWS),
            "ZSTD" if rows > FEW_ROWS else "SNAPPY",
        )
