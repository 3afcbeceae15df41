"""A run in one file: its page, and inside it what the page was made from, for whoever wants to compute with it."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.report.data import Data
from dualscope.report.page import check_page, put, render
from dualscope.studies.run_folder.cells import WITHOUT_QUERIES

DOCUMENTS = ("study.yaml", "summary.csv", "verdict.json", "response.json")
READ_ME = """A run of dualscope: report, rows and provenance.

rows.parquet     every row: a value with its model, task, seed, learner and metric (pandas.read_parquet)
queries.parquet  a row a query, where the run kept them
summary.csv      means over seeds with intervals
study.yaml       what was run: `dualscope run study.yaml` repeats it
provenance.json  versions, hashes, devices, and which examples were shown
"""


def write_shared(run: str, target: Path) -> tuple[Path, int]:
    """The page with the data inside; returns where it is, and how many rows are in it."""
    check_page(target)
    data = Data([run])
    archive, rows = archived(data)
    name = f"{data.sources[0].name}.zip"
    href = f"data:application/zip;base64,{base64.b64encode(archive).decode()}"
    return put(target, render(data, download=(name, href, len(archive))), f"--out {target}"), rows


def archived(data: Data) -> tuple[bytes, int]:
    """Rows, documents and provenance as a zip file; and how many rows."""
    source = data.sources[0]
    tables = [source.run.rows([cell]) for cell in source.all_cells]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(_entry("README.txt"), READ_ME)
        bundle.writestr(_entry("rows.parquet"), _parquet(rows))
        asked = [cell for cell in source.all_cells if WITHOUT_QUERIES not in source.run.notes(cell)]
        queries = [source.run.queries(cell) for cell in asked]
        if queries := [table for table in queries if table.num_rows]:
            whole = pa.concat_tables(queries, promote_options="permissive")
            bundle.writestr(_entry("queries.parquet"), _parquet(whole))
        bundle.writestr(_entry("provenance.json"), json.dumps(source.provenance, indent=1))
        for name in DOCUMENTS:
            if source.run.folder.exists(name):
                bundle.writestr(_entry(name), source.run.folder.read(name))
    return memory.getvalue(), rows.num_rows


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a date: the same run gives the same file."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
