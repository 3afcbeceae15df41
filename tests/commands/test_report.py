"""A run in one file: a page that needs nothing, and the data inside."""

import base64
import html
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dualscope import Run
from dualscope.studies.run_folder.storage import RunFolder
from tests.report.made import make_run


def test_the_file_holds_the_page_and_the_data(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", tasks=["sst2"], learners=["gd"], seeds=2)
    RunFolder.open(run).write_json("provenance.json", {"at": "2026-11-19", "dtype": "float32"})
    result = cli("share", run, "--out", tmp_path / "shared.html")
    assert result.code == 0, result.err
    text = (tmp_path / "shared.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "default-src 'none'" in html.unescape(text)  # it fetches nothing
    href = re.search(r'download="mine\.zip" href="data:application/zip;base64,([^"]+)"', text)
    assert href is not None
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(href[1]))) as bundle:
        rows = pq.read_table(io.BytesIO(bundle.read("rows.parquet")))
        assert rows.num_rows == Run.open(run).rows().num_rows
        assert json.loads(bundle.read("provenance.json"))["dtype"] == "float32"
        assert {"README.txt", "rows.parquet", "queries.parquet", "provenance.json"} <= set(bundle.namelist())
    assert cli("share", run, "--out", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_text() == text


def test_cells_of_responses_have_no_queries_to_share(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", tasks=["sst2"], learners=["gd"], seeds=2)
    rows = RunFolder.open(run).rows().slice(0, 1).to_pylist()
    RunFolder.open(run).store(
        "f" * 20, [{**rows[0], "intervention": "reorder"}]
    )  # as a cell of an intervention is stored
    result = cli("share", run, "--out", tmp_path / "shared.html")
    assert result.code == 0, result.err


def test_nothing_but_a_page_is_overwritten(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", tasks=["sst2"], learners=["gd"], seeds=2)
    (tmp_path / "notes.html").write_text("my notes")
    result = cli("share", run, "--out", tmp_path / "notes.html")
    assert result.code == 2
    assert (tmp_path / "notes.html").read_text() == "my notes"
    assert cli("share", tmp_path / "nothing").code == 2
