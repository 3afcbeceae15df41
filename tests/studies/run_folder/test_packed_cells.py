"""A packed run: the same cells in fewer files, read alike."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualscope.core.errors import InputError
from dualscope.core.rows import COLUMNS, QueryColumn
from dualscope.core.spec import LearnerSpec
from dualscope.studies.run_folder import packing
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder

MODELS = ("owner/model@step1000", "tiny")
SLOW = pytest.mark.slow
NAMES = [f"{i:020x}" for i in (7, 3, 9, 1, 4, 8)]


def row(**own: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "task": "sst2", "learner": "gd", "metric": "accuracy", "n": 3, **own}


def made(place: str | Path) -> RunFolder:
    """Cells of two models whose tables of queries differ: in columns, in what a column is, one has none."""
    run = RunFolder.create(place)
    run.folder.write("study.yaml", b"models: [tiny]\n")
    for i, name in enumerate(NAMES):
        rows = [row(model=MODELS[i % 2], seed=i, value=i + layer / 7, layer=layer or None) for layer in range(i + 1)]
        rows[-1] |= {"low": float("nan"), "metric": "sim_aou"}
        fields = [pa.field("query", pa.string())]
        columns: list[Any] = [[f"q{i}", "ü"]]
        for metric, kind in (("accuracy", pa.float64()), ("late", pa.null() if i < 4 else pa.float64())):
            if i % 3 or metric == "accuracy":
                column = QueryColumn(metric, LearnerSpec("gd", lr=0.1 * (i + 1)))
                fields.append(column.field(kind))
                columns.append([None, None] if kind == pa.null() else [0.5 * i, float("nan")])
        queries = pa.table(columns, schema=pa.schema(fields)) if i != 5 else None
        run.store(name, rows, queries=queries, notes={"seconds": f"{i}.5"})
    return run


def told(run: RunFolder) -> dict[str, Any]:
    """All that a run says of its cells."""
    found: dict[str, Any] = {"rows": repr(run.rows().to_pydict()), "stored": sorted(run.stored())}
    for cell in run.stored():
        queries = None if "without queries" in run.notes(cell) else run.queries(cell)
        found[cell] = (run.notes(cell), repr(run.rows([cell]).to_pydict()), run.written(cell))
        if queries is not None:
            columns = [QueryColumn.of(field) for field in queries.schema]
            found[cell] += (columns, queries.schema.types, repr(queries.to_pydict()))
    ordered = "select * from rows order by cell, metric, layer, value"
    found["sql"] = repr(run.query(ordered).select([*COLUMNS, "cell"]).to_pydict())
    summed = 'select cell, count(*) n, min("accuracy[gd]") a from queries group by 1 order by 1'
    found["queries"] = run.query(summed).to_pylist()
    return found


PLACES = ["local", "memory://dualscope-pack"]


@pytest.fixture(params=PLACES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    return made(tmp_path / "run" if request.param == "local" else f"{request.param}/{tmp_path.name}")


@pytest.mark.parametrize("size", [1, 2, 5000])
def test_a_packed_run_says_the_same(run: RunFolder, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CELLS_A_PART", size)
    before = told(run)
    result = pack(run, run)
    assert (result.cells, result.left) == (len(NAMES), {})
    assert result.parts == {1: 6, 2: 4, 5000: 2}[size]
    assert run.loose() == set()
    assert run.folder.names("queries") == []
    again = RunFolder.open(str(run.folder))
    assert told(again) == before
    assert again.unreadable(again.stored()) == {}
    assert pack(again, again).cells == 0


def test_the_data_set_is_read_by_anybody(tmp_path: Path) -> None:
    """Partitioned as Hive has it, with the columns in the files too."""
    import duckdb

    run = made(tmp_path / "run")
    pack(run, run)
    files = sorted((tmp_path / "run/packed/rows").rglob("*.parquet"))
    assert [file.parent.parent.name for file in files] == ["model=owner%2Fmodel%40step1000", "model=tiny"]
    pattern = f"{tmp_path}/run/packed/rows/**/*.parquet"
    counted = duckdb.execute(
        f"select model, task, count(distinct cell) n from read_parquet('{pattern}', hive_partitioning=true) "
        "group by all order by 1"
    ).fetchall()
    assert counted == [(MODELS[0], "sst2", 3), (MODELS[1], "sst2", 3)]


def test_what_is_stored_again_counts(run: RunFolder) -> None:
    """Loose before packed, and the later part before the earlier: also in SQL."""
    pack(run, run)
    for value, packed in ((10.0, False), (11.0, True)):
        run.store(NAMES[0], [row(model=MODELS[0], value=value)], pa.table({"query": ["x"]}))
        if packed:
            assert pack(run, run).cells == 1
        run = RunFolder.open(str(run.folder))
        assert run.rows([NAMES[0]])["value"].to_pylist() == [value]
        assert run.rows()["value"].to_pylist().count(value) == 1
        sql = f"select value from rows where cell = '{NAMES[0]}'"
        assert run.query(sql)["value"].to_pylist() == [value]
        assert run.query(f"select query from queries where cell = '{NAMES[0]}'").num_rows == 1
        assert run.stored() == set(NAMES)


def test_discarded_cells_are_gone_and_others_stay(run: RunFolder) -> None:
    pack(run, run)
    run.discard(NAMES[:2])
    for one in (run, RunFolder.open(str(run.folder))):
        assert one.stored() == set(NAMES[2:])
        assert one.query("select distinct cell from rows").num_rows == 4
        assert not one.has(NAMES[0])


def test_another_place_is_a_run_by_itself(run: RunFolder, tmp_path: Path) -> None:
    before = told(run)
    target = RunFolder.create(tmp_path / "elsewhere")
    assert pack(run, target).cells == 6
    assert run.loose() == set(NAMES)  # nothing was taken away
    assert told(RunFolder.open(tmp_path / "elsewhere")) == before
    assert pack(run, target).there == 6
    third = RunFolder.create(tmp_path / "third")
    assert pack(target, third).cells == 6  # from packed to packed
    assert told(RunFolder.open(tmp_path / "third")) == before
    third.folder.write("study.yaml", b"another\n")
    with pytest.raises(InputError, match="another study"):
        pack(run, third)
    third.folder.write("study.yaml", b"models: [tiny]\n")
    third.store("f" * 20, [row(model="m")])
    with pytest.raises(InputError, match="1 cells that"):
        pack(run, third)


def test_tables_that_do_not_go_together_have_parts_of_their_own(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    for name, values in (("a", [1]), ("b", ["x"]), ("c", [2])):
        run.store(name, [row(model="m")], pa.table({"query": ["q"], "own": values}))
    run.store("d", [row(model="m")], pa.table({"query": ["q"], "cell": [1]}))
    result = pack(run, run)
    assert (result.parts, set(result.left)) == (2, {"d"})
    assert [run.queries(name)["own"].to_pylist() for name in "abc"] == [[1], ["x"], [2]]
    assert run.loose() == {"d"}


@pytest.mark.parametrize("victim", ["rows", "queries", "index"])
@pytest.mark.parametrize("damage", ["cut", "garbled", "missing", "of another"])
def test_damage_is_said_with_the_files_name(victim: str, damage: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    pack(run, run)
    file, other = sorted((tmp_path / f"run/packed/{victim}").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        for at in range(8, len(data), 40):
            data[at] ^= 0x5A
        garbled = bytes(data)
        file.write_bytes({"cut": garbled[:100], "garbled": garbled, "of another": other.read_bytes()}[damage])
    run = RunFolder.open(tmp_path / "run")
    if (victim, damage) == ("index", "missing"):
        assert len(run.stored()) == 3  # a part without its index is not there: packing was not finished
        (tmp_path / "run/packed/index/00000002.parquet").unlink()
        assert RunFolder.open(tmp_path / "run").query("select count(*) n from rows, queries").to_pylist() == [{"n": 0}]
        return
    with pytest.raises(InputError, match=rf"packed/{victim}.*00000001.*computes what is damaged again"):
        _ = run.rows() if victim == "rows" else run.query("select * from queries")
    if victim == "index":
        assert list(run.pack.broken) == ["packed/index/00000001.parquet"]
        assert [broken.damaged for broken in run.pack.discard_broken()] == [True]
        assert len(run.stored()) == 3
    else:
        broken = run.unreadable(run.stored())
        assert len(broken) == 3
        assert all(one.damaged and "00000001" in str(one) for one in broken.values())
        run.discard(broken)
        assert run.unreadable(run.stored()) == {}


def test_it_is_compact(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    for i in range(60):
        run.store(f"{i:x}" * 4, [row(model="tiny", seed=i, value=float(layer)) for layer in range(30)])
    before = sum(file.stat().st_size for file in (tmp_path / "run/cells").iterdir())
    pack(run, run)
    files = list((tmp_path / "run/packed").rglob("*.parquet"))
    assert len(files) == 6
    assert sum(file.stat().st_size for file in files) < before / 5
    assert pq.read_metadata(files[0]).num_row_groups == 1


@pytest.fixture
def bucket() -> Iterator[str]:
    """An S3 server of this test alone."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import fsspec

    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in keys.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket"
    server.stop()


def test_a_pack_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    before = told(run)
    target = RunFolder.create(f"{bucket}/mine")
    assert pack(run, target).cells == 6
    there = RunFolder.open(f"{bucket}/mine")
    assert told(there) == before
    there.store("e" * 20, [row(model="m", value=3.0)], pa.table({"query": ["q"]}))
    assert pack(there, there).cells == 1  # also where it is
    assert there.loose() == set()
    assert there.rows(["e" * 20])["value"].to_pylist() == [3.0]


def test_one_who_watches_sees_what_a_newcomer_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are added, cells stored again and packed again, discarded: what is known of others is kept, and right."""
    monkeypatch.setattr(packing, "CELLS_A_PART", 2)
    run = made(tmp_path / "run")
    assert not run.pack.cells
    for moment in ("packed", "stored again", "packed again", "discarded"):
        if moment == "stored again":
            run.store(NAMES[0], [row(model=MODELS[0], seed=99, value=0.25)], notes={"seconds": "9.0"})
        elif moment == "discarded":
            run.discard(NAMES[1:3])
        else:
            pack(RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "run"))
        assert told(run) == told(RunFolder.open(tmp_path / "run")), moment
        asked = "select cell, count(*) n from rows group by 1 order by 1"
        counted = {one["cell"]: one["n"] for one in run.query(asked).to_pylist()}
        assert counted == {cell: run.rows([cell]).num_rows for cell in run.stored()}, moment
    assert run.stored() == set(NAMES) - set(NAMES[1:3])


THREADS = """
import os, sys
import pyarrow
from dualscope.studies.run_folder.storage import RunFolder
before = os.listdir("/proc/self/task")
run = RunFolder.open(sys.argv[1])
run.rows(), [run.queries(cell) for cell in run.stored() if "without queries" not in run.notes(cell)]
print(len(os.listdir("/proc/self/task")) - len(before))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted where Linux lists them")
def test_reading_leaves_no_thread_that_could_outlive_the_process(tmp_path: Path) -> None:
    """A thread of Arrow's that still holds our bytes when Python ends aborts the process, or keeps it from ending."""
    pack(made(tmp_path / "run"), RunFolder.open(tmp_path / "run"))
    command = [sys.executable, "-c", THREADS, str(tmp_path / "run")]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert said.stdout == "0\n"


OPENING = """
import sys
from dualscope.studies.run_folder.storage import RunFolder
print(len(RunFolder.open(sys.argv[1]).stored()), "pandas" in sys.modules)
"""


def test_a_run_is_opened_without_pandas(tmp_path: Path) -> None:
    """Arrow imports it on many ways from its values to Python, and that takes longer than all the rest."""
    run = made(tmp_path / "run")
    pack(run, run)
    done = subprocess.run([sys.executable, "-c", OPENING, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.stdout.split() == [str(len(NAMES)), "False"], done.stderr
