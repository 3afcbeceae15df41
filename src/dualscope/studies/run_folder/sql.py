"""SQL over a run, answered by DuckDB."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dualscope.core.errors import InputError
from dualscope.studies.run_folder.cells import MENDED, Cells
from dualscope.studies.run_folder.part_files import ROWS, Kind

EMPTY: dict[Kind, pa.Schema] = {"rows": ROWS, "queries": pa.schema([("cell", pa.string()), ("query", pa.string())])}


def answer(run: Cells, sql: str) -> pa.Table:
    """Over the views ``rows`` and ``queries``, which are empty where there are no cells."""
    import duckdb

    with duckdb.connect() as database:
        views: tuple[Kind, ...] = ("rows", "queries")
        for view in views:
            if view in sql.lower():  # what is not asked for need not be looked at
                _offer(run, database, view)
        try:
            return database.sql(sql).to_arrow_table()
        except duckdb.Error:
            # A damaged page is found while DuckDB reads; its words are about its own pipes.
            for cell, broken in run.unreadable(run.pack.cells - run.loose()).items():
                raise InputError(
                    f"{run.folder.path(broken.file)}: cannot be read ({broken.why}; cell {cell}); {MENDED}"
                ) from None
            raise


def _offer(run: Cells, database: Any, view: Kind) -> None:
    """Loose cells are read here, file by file: DuckDB would take a path with ``[1]`` in it for a pattern, and read
    other runs. What is packed is scanned by DuckDB, which takes only the columns and rows that a query needs.
    """
    every, loose = run.every(), run.loose()
    part = "cells" if view == "rows" else "queries"
    own = [name.removesuffix(".parquet") for name in run.folder.names(part, ".parquet")]
    sources: list[Any] = []
    tables = {}
    for cell in own:
        if cell in loose:
            with run.told(part, cell):
                table = run.read_rows(cell) if view == "rows" else run.read_queries(cell)
            plain = table.replace_schema_metadata(None)
            tables[cell] = plain.append_column("cell", pa.array([cell] * table.num_rows, pa.string()))
    if tables:
        sources.append(pa.concat_tables(tables.values(), promote_options="default"))
    if packed := every - tables.keys():
        with run.told("packed"):
            sources += run.pack.sources(view, packed)
    for i, source in enumerate(sources or [EMPTY[view].empty_table()]):
        database.register(f"{view}_{i}", source)
    parts = " union all by name ".join(f"select * from {view}_{i}" for i in range(max(1, len(sources))))
    database.execute(f"create temp view {view} as {parts}")
