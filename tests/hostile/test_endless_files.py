"""Pipes, devices and endless files in a run folder: every command says so in words, soon, and waits for nobody."""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dualscope import Run
from dualscope.core.errors import InputError
from dualscope.explorer.read_only_page import saved_state
from dualscope.regression.results_folder import load
from tests.hostile.damaged import Made
from tests.hostile.test_damaged_runs import FILES, PACKED
from tests.hostile.test_generated import told

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
LONGEST = 20  # seconds of a command on a busy machine; what waits for a pipe waits for ever


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _endless(file: Path) -> None:
    with open(file, "wb") as target:
        target.truncate(2**42)  # of zeros that take no room


def _socket(file: Path) -> None:
    short = Path(tempfile.mkdtemp()) / "s"  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short))
    shutil.move(short, file)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a device": _device,
    "a socket": _socket,
    "endless": _endless,
}
CASES = [(file, kind) for file in (*FILES, "texts/*", *PACKED) for kind in KINDS]
SAMPLE = list(zip(("cells/*", "packed/index/*", "texts/*", "queries/*"), KINDS, strict=True))  # each kind once
CHOSEN = CASES if WHOLE else SAMPLE


@contextmanager
def soon() -> Iterator[None]:
    """Inside, whatever takes longer fails."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"took longer than {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "kind"), CHOSEN)
def test_nothing_waits_for_it(made: Made, cli: Callable[..., Any], tmp_path: Path, file: str, kind: str) -> None:
    _check(made, cli, tmp_path, file, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if WHOLE else ["a pipe"])
def test_nothing_waits_for_a_response(responded: Made, cli: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    _check(responded, cli, tmp_path, "responses/*", kind)


def _check(made: Made, cli: Callable[..., Any], tmp_path: Path, file: str, kind: str) -> None:
    out = Path(shutil.copytree(made.folder, tmp_path / "run"))
    if file in PACKED:
        assert cli("pack", out).code == 0
    victim = sorted(out.glob(file))[0]
    victim.unlink()
    KINDS[kind](victim)
    with soon(), told():
        run = Run.open(out)
        run.rows()
        run.query("select count(*) from rows")
        run.query("select count(*) from queries")
    for command in (
        ("report", out, "--out", tmp_path / "report.html"),
        ("export", out, "--to", "csv", "--out", tmp_path / "csv"),
        ("pack", out, "--out", tmp_path / "packed"),
        (*made.command, "--out", out, "--no-report"),
        ("pack", out),
    ):
        with soon():
            done = cli(*command)
        assert done.code in (0, 1, 2), (command[0], command[2:], done.err[-300:])
        assert "Traceback" not in done.err + done.out
    if victim.exists() and not victim.is_file():
        assert kind != "endless"  # nothing was deleted that is not ours


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a socket"])
def test_no_training_waits_for_it(cli: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    for name, code in (("training.json", 2), ("checkpoint/state.json", 2)):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        KINDS[kind](out / name)
        with soon():
            done = cli("train", "--out", out, "--steps", 2, "--device", "cpu")
        assert done.code == code, done.err
        assert Path(name).name in done.err


@pytest.mark.parametrize("kind", KINDS)
def test_no_regression_waits_for_it(cli: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    (tmp_path / "run").mkdir()
    KINDS[kind](tmp_path / "run/regression.parquet")
    with soon():
        with pytest.raises(InputError, match=r"regression\.parquet"):
            load(tmp_path / "run")
        done = cli("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert done.code == 2
    assert "regression.parquet" in done.err


@pytest.mark.parametrize("kind", KINDS)
def test_no_screen_waits_for_it(kind: str, tmp_path: Path) -> None:
    """A saved screen was once read to its end, which a device does not have: the machine's memory was."""
    KINDS[kind](tmp_path / "screen.json")
    with soon(), pytest.raises(InputError, match=r"--state .*screen\.json"):
        saved_state(tmp_path / "screen.json")


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a socket"])
def test_none_is_replaced_by_what_is_written(made: Made, cli: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    """A table that is written to /dev/null must not take its place."""
    KINDS[kind](tmp_path / "table.tex")
    with soon():
        done = cli("report", made.folder, "--out", tmp_path / "page.html", "--latex", tmp_path / "table.tex")
    assert done.code == 2
    assert "not a regular file" in " ".join(done.err.split())
    assert not (tmp_path / "table.tex").is_file()
