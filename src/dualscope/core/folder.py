"""Where a run's files are: a local (or shared) folder, or any file system that fsspec knows.

Files appear whole or not at all, and stay when power fails. Locally a file is written aside, flushed, renamed, which
is atomic, and its folder is flushed: a rename is on the disk before anything that relies on it is written or deleted.
An object store has no rename (fsspec copies and deletes), but its writes are atomic by themselves: there a
file is put in one request, and a claim is a conditional put where the store has one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reading, reason

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


@cache
def _boot() -> str:
    """Of one start of one kernel: hosts with the same name, and a host before and after a restart, differ in it."""
    try:
        return BOOT.read_text().strip()
    except OSError:  # not Linux
        return str(int(psutil.boot_time()))


def _namespace() -> str:
    """In which numbers of processes are counted: another container's process 7 is not ours."""
    try:
        return str(NAMESPACE.stat().st_ino)
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """When a process began, in hundredths of a second after the machine did: tells it from a later one with the same
    number.
    """
    return str(round(100 * (psutil.Process(pid).create_time() - psutil.boot_time())))


@dataclass(frozen=True)
class Owner:
    """A process: its number and start, in which namespace and boot they count, and for people the host.

    >>> me = Owner.me()
    >>> Owner.decode(me.encode()) == me, me.is_dead()
    (True, False)
    """

    pid: int
    started: str
    namespace: str
    boot: str
    host: str

    @classmethod
    def me(cls) -> Owner:
        pid = os.getpid()
        return cls(pid, _started(pid), _namespace(), _boot(), socket.gethostname())

    def encode(self) -> str:
        return f"{self.pid}.{self.started}.{self.namespace}.{self.boot}.{self.host}"

    @classmethod
    def decode(cls, text: str) -> Owner | None:
        """The owner that `encode` wrote; None where the text is not (or not wholly) one."""
        pid, *rest = text.split(".", 4)
        if len(rest) != 4 or not pid.isascii() or not pid.isdigit() or not all(rest):
            return None
        return cls(int(pid), *rest)

    def is_near(self) -> bool:
        """Whether its number means something here: the same boot of the same machine, and the same namespace."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    def is_dead(self) -> bool:
        """True only where this is certain: its number can be looked up here, and it is gone or another's."""
        if not self.is_near():
            return False
        try:
            # A killed process whose parent has not asked for its exit status is a zombie: dead, for our ends.
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE or _started(self.pid) != self.started
        except psutil.NoSuchProcess:
            return not psutil.pid_exists(self.pid)  # another user's may be hidden, and there
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


ASIDE = "aside"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
"""What file systems without hard links say to one."""
PATIENCE = 20
LARGEST = 2**30  # bytes of a file that is read whole


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
            flush(aside)  # on the disk before it has its name: power may fail in between
            try:
                os.replace(aside, target)
            except IsADirectoryError:
                raise InputError(
                    f"{target}: a folder stands where a file has to be written; move it away and try again"
                ) from None
            flush(target.parent)

        self._by_way_of_aside(name, put)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False where it does. Of several callers one succeeds.

        By a hard link where the file system has them: the file has its content from the moment it is there.
        """

        def put(aside: Path, target: Path) -> None:
            aside.write_bytes(data)
            share(aside)
            flush(aside)
            try:
                os.link(aside, target)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                with open(target, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            flush(target.parent)

        try:
            self._by_way_of_aside(name, put)
        except FileExistsError:
            return False
        return True

    def _by_way_of_aside(self, name: str, put: Callable[[Path, Path], None]) -> None:
        """Call with a path aside and the target's; again where another process swept an empty folder away."""
        target, aside = self.root / name, self.root / ASIDE / f"{Owner.me().encode()}.{uuid.uuid4().hex}"
        for attempt in range(PATIENCE):
            for place in (aside.parent, target.parent):
                make_folder(place)
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
        """A file's content: of a regular file that is not larger than any that we write."""
        with self.stream(name) as file:
            # No more than it has now: where more is asked for, room for all of it is made first.
            return file.read(os.fstat(file.fileno()).st_size)

    def stream(self, name: str) -> IO[bytes]:
        """A file opened to be read in pieces."""
        return open_regular(f"{self.root}/{name}")

    def stamp(self, name: str) -> object:
        """What tells a file from another that took its name; None where there is none."""
        try:
            found = os.stat(f"{self.root}/{name}")
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def for_arrow(self) -> tuple[Any, str]:
        """A file system that Arrow knows, and the folder's path in it."""
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem(), str(self.root)

    def exists(self, name: str = "") -> bool:
        try:
            os.stat(f"{self.root}/{name}")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise  # a way that is blocked does not say that nothing is there
            return False
        except ValueError:  # a name that no file can have
            return False
        return True

    def names(self, part: str, suffix: str = "") -> list[str]:
        """The files right inside a part of the folder, in order, by their names in it."""
        try:
            found = os.listdir(self.root / part)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name that no folder can have
            return []
        return sorted(name for name in found if name.endswith(suffix))

    def files(self) -> list[str]:
        """Every file of the folder, by its path in it."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())

    def remove(self, name: str) -> None:
        Path(f"{self.root}/{name}").unlink(missing_ok=True)

    def move(self, name: str, to: str) -> bool:
        """Rename within the folder; False where the file is gone already."""
        make_folder((self.root / to).parent)
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
        return os.stat(f"{self.root}/{name}").st_mtime

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


def open_regular(path: str | Path) -> IO[bytes]:
    """A file opened to be read. A pipe or a device would be waited for, or read for ever: it is refused.

    >>> open_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file (a pipe, a device or a socket): '/dev/zero'
    """
    check_regular(path, os.stat(path))
    # It may be another by now: opened so that nothing is waited for, and looked at again.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        check_regular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: str | Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file (a pipe, a device or a socket)", str(path))
    if found.st_size > LARGEST:
        raise OSError(errno.EFBIG, f"larger than the {LARGEST >> 20} MB that are read", str(path))


def flush(path: Path) -> None:
    """Have a file's content, or a folder's names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no flush of a folder; there a rename is on the server when it returns.
        if not (os.path.isdir(path) and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)):
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each on the disk before what will be in it."""
    new = []
    while not path.is_dir():
        new.append(path)
        if path == path.parent:
            break
        path = path.parent
    for one in reversed(new):
        try:
            one.mkdir(exist_ok=True)
        except FileExistsError:  # which would else be taken for what another process has made
            raise InputError(
                f"{one}: a file stands where a folder has to be made; move it away and try again"
            ) from None
        flush(one.parent)


def share(file: Path) -> None:
    """The permissions of any new file: safetensors makes its files for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


KEPT_FOLDERS = (
    *("aside", "cells", "choices", "claims", "downloads", "failures"),
    *("packed", "provenance", "queries", "responses", "texts", "traces"),
)
"""What a run keeps its cells in, and all that belongs to them: nothing else is written there."""
KEPT_FILES = (
    *("study.yaml", "provenance.json", "summary.csv", "summary_of.json", "verdict.json", "response.json"),
    *("regression.yaml", "regression.parquet"),
)


def check_not_kept(option: str, target: Path) -> None:
    """Refuse to write among the files in which a run keeps its cells, or over one that says what was run.

    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "cells").mkdir()
    >>> (folder / "study.yaml").touch()
    >>> check_not_kept("--out", folder / "report.html")
    >>> check_not_kept("--out", folder / "cells/report.html")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dualscope.core.errors.InputError: --out ...: lies in cells/ of the run ..., which holds the run's own files; ...
    """
    try:
        full = target.resolve()
    except ValueError as error:  # a NUL in it, or half a character
        raise InputError(f"{option} {target}: no file can have this name ({reason(error)})") from None
    except (OSError, RuntimeError):
        return  # too long, or links in a circle: the error that follows says why
    for run in full.parents:
        first, *below = full.relative_to(run).parts
        if first in KEPT_FOLDERS and _is_run(run):
            raise InputError(
                f"{option} {target}: lies in {first}/ of the run {run}, which holds the run's own files; "
                "give a place beside them"
            )
        if first in KEPT_FILES and not below and _is_run(run):
            raise InputError(f"{option} {target}: is the run's own {first}; give another name")


def _is_run(folder: Path) -> bool:
    """Whether a run's files are here: a study beside its cells, or what a regression experiment wrote."""
    there = [os.path.exists(folder / name) for name in ("study.yaml", "cells", "packed", "regression.yaml")]
    return (there[0] and (there[1] or there[2])) or there[3]


def check_writable(root: Path) -> None:
    """Say before any work is done that a run's folder cannot be made here."""
    check_not_kept("--out", root)
    try:
        there = next(path for path in (root, *root.absolute().parents) if path.exists())
        if root.is_file():
            raise InputError(f"--out {root}: is a file; a run is a folder")
        if not there.is_dir():
            raise InputError(f"--out {root}: cannot be made ({there} is a file)")
        if not os.access(there, os.W_OK):
            raise InputError(f"--out {root}: cannot be made ({there} is not yours to write to)")
        with tempfile.TemporaryFile(dir=there):  # some file systems say yes and mean no
            pass
    except OSError as error:
        raise InputError(f"--out {root}: cannot be made ({error.strerror})") from None


def local_path(option: str, given: str) -> Path:
    """A path on this machine. An address is refused: it would become folders that are named after its parts."""
    if "://" in given:
        raise InputError(f"{option} {given}: written to this machine alone; give a local path")
    check_not_kept(option, Path(given))
    return Path(given)


# A run folder on any file system that fsspec knows: an object store, or memory.


def check_reachable(folder: RemoteFolder) -> None:
    """Say before any work is done that a place cannot be reached, or that we are not let in."""
    with reading(folder, "is the address right, and are its credentials given?"):
        folder.exists("study.yaml")
        folder.names("cells")


def check_remote_not_kept(folder: RemoteFolder) -> None:
    """A run in what another one keeps its cells in, at a remote place."""
    run, _, last = folder.url.rpartition("/")
    if last in KEPT_FOLDERS and not run.endswith("/") and RemoteFolder(run).exists("study.yaml"):
        raise InputError(f"--out {folder}: is {last}/ of the run {run}, which holds the run's own files; give another")


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
