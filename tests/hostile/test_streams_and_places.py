"""Where the program is started, and where its words and files go: closed streams, removed folders, others' places."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.studies.children import CONTEXT
from tests.studies.run_folder.test_packed_cells import made

PROGRAM = [sys.executable, "-m", "dualscope"]
WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
FEW = 20  # files
SHORT = 10_000  # bytes: the cells of the study below have some 8 to 12 thousand


def _said(command: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command line of a shell, with the program as $D."""
    return subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "D": " ".join(PROGRAM), **settings},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _in_limits(limit: str, most: int, arguments: list[str], words: Path) -> None:
    """The program in this process, which may have no more than that; what it says goes to a file."""
    import resource

    from dualscope.cli import main

    with words.open("w", buffering=1) as said:
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        sys.stdout = sys.stderr = said
        sys.argv = ["dualscope", *arguments]
        resource.setrlimit(getattr(resource, limit), (most, most))
        main()


def _limited(limit: str, most: int, arguments: list[str], words: Path) -> tuple[int | None, str]:
    """The same in a process of its own, which has imported what it needs: its exit code, and what it said."""
    process = CONTEXT.Process(target=_in_limits, args=(limit, most, arguments, words))
    process.start()
    process.join(120)
    return process.exitcode, words.read_text()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    done = _said(f"$D list tasks {closed}", tmp_path)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_terminal_that_knows_ascii_alone(tmp_path: Path) -> None:
    done = _said("$D validate 'ümläut-任务'", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "unknown task" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_removed_working_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = _said(f"cd {gone} && rmdir {gone} && $D list tasks", tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_few_files(model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> None:
    command = f"run --dry-run --model {model_folder} --task {task_files[0]} --out {tmp_path / 'run'}"
    code, said = _limited("RLIMIT_NOFILE", FEW, command.split(), tmp_path / "words")
    assert code in (0, 1, 2), said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
@pytest.mark.parametrize("kilobytes", [400_000, 900_000] if WHOLE else [900_000])
def test_little_memory(kilobytes: int, model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> None:
    command = f"$D run --dry-run --model {model_folder} --task {task_files[0]} --out run"
    done = _said(f"ulimit -v {kilobytes}; {command}", tmp_path)
    assert done.returncode in (0, 1, 2), done.stderr  # 1: OpenBLAS ends the process by itself
    assert "Traceback" not in done.stderr
    assert done.returncode != 2 or "memory" in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_short_files(cli: Callable[..., Any], model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> None:
    small = "--learner gd --lr 0.1 --seeds 1 --shots 2 --queries 4 --device cpu --jobs 1 --no-report"
    command = f"run --model {model_folder} --task {task_files[0]} {small} --out {tmp_path / 'run'}"
    code, said = _limited("RLIMIT_FSIZE", SHORT, command.split(), tmp_path / "words")
    assert code == 1, said
    assert "File too large" in said
    assert "Traceback" not in said
    again = cli(*command.split())
    assert again.code == 0, again.err


@pytest.mark.parametrize("wait", [0.05, 0.1, 0.15, 0.2, 0.3, 0.5] if WHOLE else [0.05, 0.15, 0.3])
@pytest.mark.parametrize("start", ["-m dualscope", "script"])
def test_ctrl_c_in_the_first_half_second(start: str, wait: float, tmp_path: Path) -> None:
    """Whatever of ours runs then ends in words, or at once; before that it is Python's own start."""
    script = tmp_path / "dualscope"  # as pip writes it
    script.write_text("import sys\nfrom dualscope.__main__ import main\nsys.exit(main())\n")
    program = subprocess.Popen(
        [*([sys.executable, str(script)] if start == "script" else PROGRAM), "list", "tasks"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(wait)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert program.returncode in (0, 130, -signal.SIGINT)
    assert "dualscope/" not in said, said


@pytest.mark.parametrize("name", ["study.yaml", "cells/00000000000000000007.parquet", "packed/index/00000001.parquet"])
def test_a_report_overwrites_nothing_but_a_page(name: str, cli: Callable[..., Any], tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    if name.startswith("packed"):
        assert cli("pack", tmp_path / "run").code == 0
    before = run.folder.read(name)
    done = cli("report", tmp_path / "run", "--out", tmp_path / "run" / name)
    assert done.code == 2
    assert "no page" in done.err or "the run's own" in done.err
    assert run.folder.read(name) == before


def test_others_places(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    names = run.folder.files()
    for command in (
        ("train", "--out", tmp_path / "run"),
        ("pack", tmp_path / "run", "--out", tmp_path / "run/cells"),
        ("pack", tmp_path / "run", "--out", tmp_path),
        ("pack", tmp_path / "run", "--out", ""),
        ("export", tmp_path / "run", "--to", "csv", "--out", ""),
    ):
        done = cli(*command)
        assert done.code == 2, (command, done.err)
        assert "--out" in done.err
    assert run.folder.files() == names


def test_labels_with_markup(cli: Callable[..., Any]) -> None:
    done = cli("try", "a fine film => [/red]", "a dull plot => [bold]", "--query", "a [link=x] bore", "--device", "cpu")
    assert done.code in (0, 2), done.err
    assert done.code == 2 or "[/red]" in done.out


def test_sigterm_while_planning_ends_in_words(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [*PROGRAM, "run", "--model", "embedded", "--task", "embedded-sst2", "--dry-run", "--out", "run"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert program.stderr is not None
    while "planning" not in program.stderr.readline():
        assert program.poll() is None
    program.terminate()
    said = program.stderr.read()
    assert program.wait(20) in (143, 0)  # it may have been done already
    assert program.returncode == 0 or "interrupted" in said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what the process has loaded")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_report_is_written_ends_in_words(number: int, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    program = subprocess.Popen(
        [*PROGRAM, "report", "--shipped", "regression", "--out", str(page)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while "libarrow" not in Path(f"/proc/{program.pid}/maps").read_text():  # the command has begun to read
        assert program.poll() is None
        time.sleep(0.002)
    program.send_signal(number)
    _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + number, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
