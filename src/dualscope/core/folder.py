"""Where a run's files are: a local (or shared) folder, or any file system that fsspec knows.

Files appear whole or not at all. Locally a file is written aside, flushed, and renamed, which is atomic.
An object store has no rename (fsspec copies and deletes), but its writes are atomic by themselves: there a
file is put in one request, and a claim is a conditional put where the store has one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from dualscope.core.errors import InputError
from dualscope.core.owner import Owner
from dualscope.core.strangers import reading

ASIDE = "aside"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
"""What file systems without hard links say to one."""
PATIENCE = 20


class Folder:
    """A local folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @staticmethod
    def at(place: str | Path) -> Folder:
        """The folder at a path or at a URL (``s3://bucket/run``, ``memory://run``)."""
        text = str(place)
        if "://" in text and not text.startswith("file://"):
            return RemoteFolder(text)
        return Folder(text.removeprefix("file://"))

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all: aside, flushed to the disk, then renamed."""

        def writer(path: Path) -> None:
            path.write_bytes(data)

        self.write_by(name, writer)

    def write_by(self, name: str, writer: Callable[[Path], None]) -> None:
        """The same for a file that something else writes, given a path: a trace may be larger than memory."""

        def put(aside: Path, target: Path) -> None:
            writer(aside)
            share(aside)
            with open(aside, "rb") as file:  # on the disk before it has its name: power may fail in between
                os.fsync(file.fileno())
            try:
                os.replace(aside, target)
            except IsADirectoryError:
                raise InputError(
                    f"{target}: a folder stands where a file has to be written; move it away and try again"
                ) from None

        self._by_way_of_aside(name, put)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False where it does. Of several callers one succeeds.

        By a hard link where the file system has them: the file has its content from the moment it is there.
        """

        def put(aside: Path, target: Path) -> None:
            aside.write_bytes(data)
            share(aside)
            try:
                os.link(aside, target)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                with open(target, "xb") as file:
                    file.write(data)

        try:
            self._by_way_of_aside(name, put)
        except FileExistsError:
            return False
        return True

    def _by_way_of_aside(self, name: str, put: Callable[[Path, Path], None]) -> None:
        """Call with a path aside and the target's; again where another process swept an empty folder away."""
        target, aside = self.root / name, self.root / ASIDE / f"{Owner.me().encode()}.{uuid.uuid4().hex}"
        for attempt in range(PATIENCE):
            aside.parent.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                put(aside, target)
            except FileNotFoundError:
                if attempt == PATIENCE - 1:
                    raise
            else:
                return
            finally:
                aside.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def stream(self, name: str) -> IO[bytes]:
        """A file opened to be read in pieces."""
        return open(self.root / name, "rb")

    def for_arrow(self) -> tuple[Any, str]:
        """A file system that Arrow knows, and the folder's path in it."""
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem(), str(self.root)

    def exists(self, name: str = "") -> bool:
        return (self.root / name).exists()

    def names(self, part: str, suffix: str = "") -> list[str]:
        """The files right inside a part of the folder, in order, by their names in it."""
        try:
            found = os.listdir(self.root / part)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in found if name.endswith(suffix))

    def files(self) -> list[str]:
        """Every file of the folder, by its path in it."""
        return sorted(
            path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()
        )

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> bool:
        """Rename within the folder; False where the file is gone already."""
        (self.root / to).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(self.root / name, self.root / to)
        except FileNotFoundError:
            return False
        return True

    def touch(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.root / name)

    def age(self, name: str) -> float:
        """Seconds since a file was written or touched, by the clock of the file system that holds it."""
        ages: list[float] = []

        def compare(clock: Path, target: Path) -> None:
            clock.touch()
            now = clock.stat().st_mtime
            with contextlib.suppress(FileNotFoundError):
                ages.append(now - target.stat().st_mtime)

        self._by_way_of_aside(name, compare)
        return ages[0] if ages else 0.0

    def written(self, name: str) -> float:
        """When a file was written, to tell which of two is newer."""
        return (self.root / name).stat().st_mtime

    def sweep(self, stale: float) -> None:
        """Remove what processes that are gone had written aside, and folders left empty."""
        for name in self.names(ASIDE):
            owner = Owner.decode(name.rpartition(".")[0])
            with contextlib.suppress(OSError):  # another user's, or a full disk: the next run tidies up
                if (owner is not None and owner.is_dead()) or self.age(f"{ASIDE}/{name}") > stale:
                    self.remove(f"{ASIDE}/{name}")
        for part in (ASIDE, "claims", "failures"):
            with contextlib.suppress(OSError):
                (self.root / part).rmdir()


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


def share(file: Path) -> None:
    """The permissions of any new file: safetensors makes its files for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def check_writable(root: Path) -> None:
    """Say before any work is done that a run's folder cannot be made here."""
    try:
        there = next(path for path in (root, *root.absolute().parents) if path.exists())
        if root.is_file():
            raise InputError(f"--out {root}: is a file; a run is a folder")
        if not there.is_dir():
            raise InputError(f"--out {root}: cannot be made ({there} is a file)")
        if not os.access(there, os.W_OK):
            raise InputError(f"--out {root}: cannot be made ({there} is not yours to write to)")
    except OSError as error:
        raise InputError(f"--out {root}: cannot be made ({error.strerror})") from None
