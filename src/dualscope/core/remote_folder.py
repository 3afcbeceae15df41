"""A run folder on any file system that fsspec knows: an object store, or memory."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from dualscope.core.folder import Folder
from dualscope.core.untrusted_files import reading


def check_reachable(folder: RemoteFolder) -> None:
    """Say before any work is done that a place cannot be reached, or that we are not let in."""
    with reading(folder, "is the address right, and are its credentials given?"):
        folder.exists("study.yaml")
        folder.names("cells")


class RemoteFolder(Folder):
    """A folder behind fsspec. A write is one request; there is nothing aside to sweep."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        self.fs: Any
        with reading(url, "give a folder, or a URL whose file system fsspec knows and that is installed"):
            self.fs, self.base = fsspec.core.url_to_fs(self.url)

    def __str__(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _at(self, name: str) -> str:
        return f"{self.base}/{name}".rstrip("/")

    def write(self, name: str, data: bytes) -> None:
        self.fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(self._at(name), data)

    def write_by(self, name: str, writer: Callable[[Path], None]) -> None:
        self.fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        with tempfile.TemporaryDirectory() as local:
            path = Path(local) / "file"
            writer(path)
            self.fs.put_file(str(path), self._at(name))

    def create(self, name: str, data: bytes) -> bool:
        self.fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        if self.exists(name):
            return False
        try:
            self.fs.pipe_file(self._at(name), data, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(self._at(name)))

    def stream(self, name: str) -> IO[bytes]:
        opened: IO[bytes] = self.fs.open(self._at(name), "rb")
        return opened

    def stamp(self, name: str) -> object:
        self.fs.invalidate_cache()
        try:
            found = self.fs.info(self._at(name))
        except FileNotFoundError:
            return None
        known = ("ETag", "etag", "md5Hash", "created", "LastModified", "mtime", "size")
        return tuple(str(found[key]) for key in known if key in found)

    def for_arrow(self) -> tuple[Any, str]:
        return self.fs, self.base

    def exists(self, name: str = "") -> bool:
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self._at(name)))

    def names(self, part: str, suffix: str = "") -> list[str]:
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self._at(part), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rpartition("/")[2] for path in found if path.endswith(suffix))

    def files(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(str(path).removeprefix(self.base).lstrip("/") for path in self.fs.find(self.base))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self._at(name))

    def move(self, name: str, to: str) -> bool:
        try:
            self.write(to, self.read(name))
        except FileNotFoundError:
            return False
        self.remove(name)
        return True

    def touch(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.write(name, self.read(name))

    def age(self, name: str) -> float:
        self.fs.invalidate_cache()
        with contextlib.suppress(FileNotFoundError, NotImplementedError):
            return time.time() - float(self.fs.modified(self._at(name)).timestamp())
        return 0.0

    def written(self, name: str) -> float:
        with contextlib.suppress(FileNotFoundError, NotImplementedError):
            return float(self.fs.modified(self._at(name)).timestamp())
        return 0.0

    def sweep(self, stale: float) -> None:
        return None
