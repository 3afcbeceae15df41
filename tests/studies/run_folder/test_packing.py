"""Packing: killed at any moment it loses nothing and leaves nothing, and one packs at a time."""

import os
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.rows import COLUMNS as OF_ROWS
from dualscope.studies.run_folder import packing
from dualscope.studies.run_folder.packed_cells import file_of
from dualscope.studies.run_folder.packing import card_of, pack
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.run_folder.test_packed_cells import MODELS, NAMES, SLOW, made, row, told


class Killed(BaseException):
    """Nothing that the code could catch."""


@pytest.mark.parametrize("call", ["unlink", *(pytest.param(one, marks=SLOW) for one in ("replace", "fsync"))])
@pytest.mark.parametrize("after", [False, pytest.param(True, marks=SLOW)])
def test_a_kill_at_any_moment_loses_nothing(
    call: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after every single call that changes the disk; then it goes on to the same end."""
    monkeypatch.setattr(packing, "CELLS_A_PART", 2)
    before = told(made(tmp_path / "whole"))
    owner: Any = Path if call == "unlink" else os
    plain: Callable[..., Any] = getattr(owner, call)
    for number in range(1, 40):
        place = Path(shutil.copytree(tmp_path / "whole", tmp_path / f"run{number}"))
        left = [number]

        def deadly(*arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            result = plain(*arguments, **options)
            if left[0] == 0:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(owner, call, deadly)
            try:
                pack(RunFolder.open(place), RunFolder.open(place))
            except Killed:
                pass
            else:
                break
        found = told(RunFolder.open(place))
        assert found == before, (call, number)
        for claim in (place / "claims").glob("*"):
            claim.unlink()  # of the dead
        pack(RunFolder.open(place), RunFolder.open(place))
        assert RunFolder.open(place).loose() == set()
        assert told(RunFolder.open(place)) == before
    assert number > 6  # it was killed at every one


def test_what_a_killed_packing_left_is_cleared_away(tmp_path: Path) -> None:
    """Rows and queries without an index, under a number that is free or was given to another partition since."""
    run = made(tmp_path / "run")
    pack(run, run)
    _, second = sorted(run.folder.names("packed/index"))
    files = [name for name in run.folder.files() if name.startswith(("packed/rows/", "packed/queries/"))]
    home = str(Path(file_of("rows", MODELS[0], "sst2", "")).parent)
    own = run.folder.names(home)
    for left in ("00000009-0123abcd.parquet", second):
        run.folder.write(f"{home}/{left}", run.folder.read(f"{home}/{own[0]}"))
    run.store("f" * 20, [row(model=MODELS[0], value=1.0)], pa.table({"query": ["x"]}))
    pack(RunFolder.open(str(run.folder)), RunFolder.open(str(run.folder)))
    again = RunFolder.open(str(run.folder))
    assert again.stored() == {*NAMES, "f" * 20}
    assert again.unreadable(again.stored()) == {}
    kept, new = again.folder.names(home)
    assert ([kept], new[:9]) == (own, "00000003-")
    assert set(files) <= set(again.folder.files())


def test_files_of_an_index_that_cannot_be_read_stay(tmp_path: Path) -> None:
    """It does not say which they are, and may be readable again tomorrow."""
    run = made(tmp_path / "run")
    pack(run, run)
    first, _ = sorted(run.folder.names("packed/index"))
    files = {name for name in run.folder.files() if name.startswith("packed/") and first[:8] in name}
    assert len(files) == 3
    run.folder.write(f"packed/index/{first}", b"garbled")
    run.store("f" * 20, [row(model=MODELS[0], value=1.0)], pa.table({"query": ["x"]}))
    pack(RunFolder.open(str(run.folder)), RunFolder.open(str(run.folder)))
    assert files <= set(run.folder.files())


def test_one_packs_at_a_time(tmp_path: Path) -> None:
    from dualscope.studies.run_folder.claims import Claims

    run = made(tmp_path / "run")
    with Claims(Folder(tmp_path / "run")) as claims:
        claims.take("pack")
        with pytest.raises(InputError, match="is being packed already"):
            pack(run, run)


NAMED = ["..", ".", "a/b", "a=b", "über 任务", "x" * 300, "*?[]", "%2F", "__HIVE_DEFAULT_PARTITION__", "", " ", None]


def test_names_of_any_kind(tmp_path: Path) -> None:
    """Some share a folder, none leaves it, and packing twice removes nothing that counts."""
    run = RunFolder.create(tmp_path / "run")
    run.folder.write("study.yaml", b"models: [tiny]\n")
    cells = {f"{i:020x}": pair for i, pair in enumerate(product(NAMED, ("", None, "..", "a/b")))}
    half = list(cells)[::2]
    ordered = "select cell, model, task, value from rows order by cell"
    for some in (half, cells.keys() - set(half)):
        for cell in some:
            model, task = cells[cell]
            run.store(cell, [row(model=model, task=task, value=1.0)], pa.table({"query": ["q"]}))
        before = run.query(ordered).to_pylist()
        assert pack(run, run).left == {}
        run = RunFolder.open(tmp_path / "run")
        assert run.unreadable(run.stored()) == {}
        assert run.query(ordered).to_pylist() == before
    assert run.loose() == set()
    assert run.stored() == set(cells)


def test_the_head_names_the_parts() -> None:
    _, head, _ = card_of({"tasks": ["sst2"]}, 3).split("---\n", 2)
    configs = {one["config_name"]: one["data_files"] for one in yaml.safe_load(head)["configs"]}
    assert configs == {"rows": "rows/*/*/*.parquet", "queries": "queries/*/*/*.parquet"}


def test_it_explains_every_column_of_rows() -> None:
    table = card_of({}, 3).partition("## Columns")[2].partition("## How")[0]
    said = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1] if line else "")}
    assert said == {"cell", *OF_ROWS}


def test_a_studys_text_stays_in_its_cell() -> None:
    study = {"models": ["a|b\n| `x` | y |", "<script>"], "learners": [{"learner": "gd", "options": {"epochs": 2}}]}
    lines = [line for line in card_of(study, 3).splitlines() if line.startswith(("| `models`", "| `learners`"))]
    assert [line.count("|") for line in lines] == [3, 3]
    assert '`gd {"epochs": 2}`' in lines[1]


def test_folders_of_the_machine_stay_at_home() -> None:
    study = {"models": ["/home/me/models/tiny"], "tasks": [{"task": "/home/me/reviews.yaml", "seeds": None}]}
    card = card_of(study, 3)
    assert "/home/me" not in card
    assert "| `models` | `tiny` |" in card
    assert "| `tasks` | `reviews.yaml` |" in card
