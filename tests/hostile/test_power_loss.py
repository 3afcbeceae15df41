"""Power fails at any moment: what the disk has then holds every cell that was stored, loose or packed.

The model of a disk: a file's content is there after its flush; a name in a folder is there (or gone) after the folder's
flush. Of what was not flushed anything may be there: each name has one of its later states, a content may be cut.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dualscope.studies.run_folder import packing
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.run_folder.test_packed_cells import NAMES, made, row, told

SCHEDULES = 100 if os.environ.get("DUALSCOPE_WHOLE") else 20  # of cells and of packings each
Inode = int
FOLDER = -1


class Disk:
    """Writes down what is asked of the disk under a folder, and makes what power loss leaves of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[tuple[Any, ...]] = []
        self.inodes: dict[str, Inode] = {}
        self.first: dict[str, bytes | None] = {}  # what was there before, None for folders
        for path in sorted(root.rglob("*")):
            self.first[self._name(path)] = path.read_bytes() if path.is_file() else None

    def _name(self, path: Any) -> str:
        return os.path.relpath(os.path.abspath(os.fspath(path)), self.root)

    def _is_here(self, path: Any) -> bool:
        return bool(os.path.abspath(os.fspath(path)).startswith(f"{self.root}{os.sep}"))

    def _inode(self, path: Any) -> Inode:
        return self.inodes.setdefault(self._name(path), len(self.events) + 1)

    def _wrote(self, path: Any, data: bytes) -> None:
        self.events.append(("name", self._name(path), self._inode(path)))
        self.events.append(("content", self._inode(path), bytes(data)))

    def _moved(self, source: Any, target: Any, stays: bool) -> None:
        inode = self._inode(source)
        self.inodes[self._name(target)] = inode
        self.events.append(("name", self._name(target), inode))
        if not stays:
            self._removed(source)

    def _removed(self, path: Any) -> None:
        self.inodes.pop(self._name(path), None)
        self.events.append(("name", self._name(path), None))

    def _flushed(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        name = self._name(path)
        if self._is_here(path) or path == str(self.root):
            self.events.append(("folder" if os.path.isdir(path) else "file", name, self.inodes.get(name)))

    @contextmanager
    def watched(self) -> Iterator[None]:
        def after(plain: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                there = not self._is_real(arguments[0]) or note.__name__ == "_flushed"
                result = plain(*arguments, **options)
                if there:
                    note(*arguments[:2])
                return result

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "write_bytes", after(Path.write_bytes, self._wrote))
            patch.setattr(Path, "unlink", after(Path.unlink, lambda path, *_: self._removed(path)))
            patch.setattr(Path, "mkdir", after(Path.mkdir, self._made))
            patch.setattr(Path, "touch", after(Path.touch, lambda path, *_: self._wrote(path, b"")))
            patch.setattr(os, "replace", after(os.replace, lambda a, b: self._moved(a, b, False)))
            patch.setattr(os, "rename", after(os.rename, lambda a, b: self._moved(a, b, False)))
            patch.setattr(os, "link", after(os.link, lambda a, b: self._moved(a, b, True)))
            patch.setattr(os, "fsync", after(os.fsync, self._flushed))
            yield

    def _is_real(self, path: Any) -> bool:
        """Whether a path is none of ours."""
        return not isinstance(path, int) and not self._is_here(path)

    def _made(self, path: Any, *_: Any) -> None:
        if self._name(path) not in self.inodes and self._name(path) not in self.first:
            self.inodes[self._name(path)] = FOLDER
            self.events.append(("name", self._name(path), FOLDER))

    def after_loss(self, moment: int, rng: np.random.Generator, place: Path) -> Path:
        """The folder as the disk may have it when power failed after so many events."""
        names: dict[str, list[Inode | str | None]] = {name: ["first"] for name in self.first}
        settled = dict.fromkeys(names, 0)
        contents: dict[Inode, bytes] = {}
        safe: set[Inode] = set()
        for kind, what, more in self.events[:moment]:
            if kind == "name":
                names.setdefault(what, [None]).append(more)
            elif kind == "content":
                contents[what] = more
                safe.discard(what)
            elif kind == "file" and more is not None:
                safe.add(more)
            elif kind == "folder":
                for name in names:
                    if os.path.dirname(name) == (what if what != "." else ""):
                        settled[name] = len(names[name]) - 1
        place.mkdir()
        chosen = {name: states[rng.integers(settled.get(name, 0), len(states))] for name, states in names.items()}
        for name in sorted(chosen):
            state, path = chosen[name], place / name
            if state is None or not path.parent.is_dir():
                continue
            if state == FOLDER or (state == "first" and self.first[name] is None):
                path.mkdir()
            elif state == "first":
                path.write_bytes(self.first[name] or b"")
            else:
                data = contents.get(state, b"")  # type: ignore[arg-type]
                whole = state in safe or rng.random() < 0.5
                path.write_bytes(data if whole else data[: int(rng.integers(0, len(data) + 1))])
        return place


def test_the_model_loses_what_was_not_flushed(tmp_path: Path) -> None:
    """Else the other tests could not fail."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = Disk(root)
    with disk.watched():
        (root / "a").write_bytes(b"content")
    found = [disk.after_loss(len(disk.events), np.random.default_rng(i), tmp_path / f"{i}") for i in range(20)]
    there = [(one / "a").read_bytes() for one in found if (one / "a").exists()]
    assert 0 < len(there) < 20
    assert any(data != b"content" for data in there)


def test_cells(tmp_path: Path) -> None:
    """Whatever `store` has returned for is there and whole; whatever else is there is whole, too."""
    rng = np.random.default_rng(0)
    root = tmp_path / "run"
    root.mkdir()
    disk = Disk(root)
    stored: dict[str, int] = {}
    run = RunFolder(RunFolder.create(root).folder)
    with disk.watched():
        for i in range(6):
            cell = f"{i:020x}"
            run.store(cell, [row(model="m", value=float(i))], pa.table({"query": [f"q{i}"]}))
            stored[cell] = len(disk.events)
    for number in range(SCHEDULES):
        moment = int(rng.integers(0, len(disk.events) + 1))
        place = disk.after_loss(moment, rng, tmp_path / f"lost{number}")
        found = RunFolder(RunFolder.create(place).folder)
        there = found.stored()
        assert {cell for cell, event in stored.items() if event <= moment} <= there
        assert found.unreadable(there) == {}
        for cell in there:
            assert found.rows([cell])["value"].to_pylist() == [float(int(cell, 16))]
            assert found.queries(cell)["query"].to_pylist() == [f"q{int(cell, 16)}"]
        shutil.rmtree(place)


def test_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is there at every moment; the same command then packs to the end."""
    monkeypatch.setattr(packing, "CELLS_A_PART", 2)
    rng = np.random.default_rng(1)
    root = tmp_path / "run"
    made(root)
    before = _without_times(told(RunFolder.open(root)))
    disk = Disk(root)
    with disk.watched():
        pack(RunFolder.open(root), RunFolder.open(root))
    for number in range(SCHEDULES):
        moment = int(rng.integers(0, len(disk.events) + 1))
        place = disk.after_loss(moment, rng, tmp_path / f"lost{number}")
        found = RunFolder.open(place)
        assert found.stored() == set(NAMES)
        assert found.unreadable(found.stored()) == {}
        assert _without_times(told(found)) == before
        if not number % 10:
            for claim in (place / "claims").glob("*"):
                claim.unlink()  # of the process that lost its power
            pack(RunFolder.open(place), RunFolder.open(place))
            assert RunFolder.open(place).loose() == set()
            assert _without_times(told(RunFolder.open(place))) == before
        shutil.rmtree(place)


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one[:2] + one[3:] if isinstance(one, tuple) else one for name, one in found.items()}
