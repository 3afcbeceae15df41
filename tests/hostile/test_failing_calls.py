"""A disk that fails at one call: words, nothing lost, and the same command goes on.

Every so-manieth opening, writing, flushing, renaming and linking of one run and of one packing fails once, with a full
disk, a disk's error or a missing permission.
"""

import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dualscope import Run
from tests.studies.children import rows

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
NUMBERS = {"full": errno.ENOSPC, "broken": errno.EIO, "forbidden": errno.EACCES}
CALLS: dict[str, tuple[Any, str]] = {
    "open": (os, "open"),
    "write": (Path, "write_bytes"),
    "flush": (os, "fsync"),
    "rename": (os, "replace"),
    "link": (os, "link"),
    "read": (io, "open"),
}


@contextmanager
def failing(call: str, number: int, why: int, below: Path) -> Iterator[list[int]]:
    """Inside, the so-manieth call of this kind on something below a folder fails; tells how many there were."""
    owner, name = CALLS[call]
    plain: Callable[..., Any] = getattr(owner, name)
    seen = [0]

    def fails(*arguments: Any, **options: Any) -> Any:
        first = arguments[0]
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
        if str(path).startswith(str(below)):
            seen[0] += 1
            if seen[0] == number:
                raise OSError(why, os.strerror(why), str(path))
        return plain(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fails)
        yield seen


@pytest.fixture(scope="module")
def command(model_folder: str, task_files: tuple[str, str]) -> tuple[object, ...]:
    sizes = ("--seeds", 1, "--shots", 2, "--queries", 4, "--learner", "gd", "--lr", 0.1, "--device", "cpu")
    return ("run", "--model", model_folder, "--task", task_files[0], *sizes, "--jobs", 1, "--no-report")


@pytest.fixture(scope="module")
def whole(command: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dualscope.cli import app

    out = tmp_path_factory.mktemp("failing") / "whole"
    app([*map(str, command), "--out", str(out)], standalone_mode=False)
    return out


CASES = [(call, why) for call in CALLS for why in NUMBERS]
FIRST = (1, 4)  # of these calls one fails in the ordinary run
SAMPLE = [(call, list(NUMBERS)[i % len(NUMBERS)]) for i, call in enumerate(CALLS)]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "why"), CASES if WHOLE else SAMPLE)
@pytest.mark.parametrize("what", ["run", "pack"])
def test_every_call_once(
    what: str, call: str, why: str, command: tuple[object, ...], whole: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    number = 1 if WHOLE else random.Random(f"{what} {call}").randint(*FIRST)
    while True:
        out = tmp_path / f"run{number}"
        if what == "pack":
            shutil.copytree(whole, out)
        asked = ("pack", out) if what == "pack" else (*command, "--out", out)
        with failing(call, number, NUMBERS[why], out) as seen:
            done = cli(*asked)
        assert done.code in (0, 1, 2), (number, done.err)
        assert "Traceback" not in done.err + done.out
        if seen[0] < number:  # there were no more
            assert done.code == 0
            break
        assert done.code == 0 or done.err.strip(), number
        if what == "pack":
            assert rows(out) == rows(whole), number
        again = cli(*asked)
        assert again.code == 0, (number, again.err)
        assert rows(out) == rows(whole), number
        assert Run.open(out).unreadable(Run.open(out).stored()) == {}
        shutil.rmtree(out)
        if not WHOLE:
            return
        number += 1
    assert number > 1 or (call == "read" and WHOLE)
