"""What is shown while a run goes on, and plugins that are installed packages."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from dualscope.studies.execute.progress import Reporter
from dualscope.studies.execute.work import Outcome, Started
from dualscope.studies.plugins import load_plugins, plugins_digest

COLUMNS = 80


def _show(terminal: bool, verbose: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, highlight=False)
    with Reporter(console, verbose=verbose) as reporter:
        reporter.begin(3, 1)
        reporter.tell(Started("cell [a]"))
        reporter.tell(Outcome("1", "cell [a]", "stored", 1.25))
        reporter.tell(Outcome("2", "cell b", "failed", reason="no [luck]"))
    return text.getvalue()


def test_a_quick_run_without_a_terminal_says_little() -> None:
    assert _show(terminal=False).splitlines() == [
        "planning",
        "4 steps, 1 of them stored before",
        "[3/4] FAILED cell b: no [luck]",
    ]


def test_every_cell_has_a_line_on_request() -> None:
    assert "[2/4] cell [a]: 1.2 s" in _show(terminal=False, verbose=True).splitlines()


def test_a_first_piece_that_is_slow_does_not_make_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Reporter(Console(file=io.StringIO(), force_terminal=False)) as reporter:
        reporter.begin(3, 0, {"short": 0.1, "long": 200.0, "longer": 200.0})
        now[0] = 18.0  # the model was loaded
        reporter.tell(Outcome("short", "a cell", "stored", 0.1))
        assert reporter.left is not None
        assert 400 < reporter.left < 1200
        now[0] = 218.0
        reporter.tell(Outcome("long", "a cell", "stored", 200.0))
        assert reporter.left == pytest.approx(203, rel=0.1)


def test_one_count_and_one_estimate_over_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of a rate comes first; what is left is told by what the pieces are expected to take."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    text = io.StringIO()
    with Reporter(Console(file=text, force_terminal=False, width=120, highlight=False)) as reporter:
        reporter.begin(4, 0, {"long": 27.0, "short": 3.0})  # and two pieces of a choice, of which nothing is known
        now[0] = 15.0
        reporter.tell(Outcome("round 1", "a choice", "stored", 15.0))
        # 15 of 63 expected are done in 15 seconds; the last 3 are what follows from the cells.
        assert reporter.left == pytest.approx(48.0)
        reporter.begin(3, 0, {"long": 27.0, "short": 3.0})  # the search ended early
        assert reporter.left == pytest.approx(33.0)
        now[0] = 42.0
        reporter.tell(Outcome("long", "a cell", "stored", 27.0))
        assert reporter.left == pytest.approx(6.0)
        now[0] = 44.0
        assert reporter.left == pytest.approx(4.0)
    assert text.getvalue().splitlines() == [
        "planning",
        "5 steps",
        "[1/5] 0:00:15 gone, about 0:00:48 left",
        "[2/4] 0:00:42 gone, about 0:00:06 left",
    ]


def test_bars_on_a_terminal() -> None:
    shown = _show(terminal=True)
    assert "FAILED cell b: no [luck]" in shown
    assert "3/4" in shown
    assert "cell [a]" in shown


def test_an_installed_package_names_its_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugin.py").write_text("loaded = True\n")
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dualscope.plugins]\nmine = my_plugin\n")
    none = plugins_digest(())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins_digest(()) != none
    load_plugins(())
    assert sys.modules["my_plugin"].loaded


def _before_a_terminal(command: list[str]) -> tuple[int, str]:
    """Run a program as a person would; returns its exit code and all that it showed."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    quiet = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "CI", "NO_COLOR")}
    process = subprocess.Popen(
        command, stdin=there, stdout=there, stderr=there, env={**quiet, "TERM": "xterm-256color"}
    )
    os.close(there)
    shown = b""
    while True:
        try:
            part = os.read(here, 65536)
        except OSError:  # Linux says so where the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(here)
    return process.wait(), shown.decode()


def test_the_counter_and_the_time_left_stay(fields: dict[str, Any], tmp_path: Path) -> None:
    study = tmp_path / "a-study-with-quite-a-long-name.yaml"
    study.write_text(yaml.safe_dump(fields | {"seeds": 1}))
    command = [sys.executable, "-m", "dualscope", "run", str(study), "--out", str(tmp_path / "run"), "--no-report"]
    code, shown = _before_a_terminal([*command, "--jobs", "1", "--device", "cpu"])
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]+", plain) if re.search(r"\d+/\d+", line) and "left" in line]
    assert lines, plain
    for line in lines:
        assert len(line) <= COLUMNS
        assert re.search(r"\d+/\d+ +\d:\d\d:\d\d +left +(\d:\d\d:\d\d|-:--:--)", line), line
    assert any("seed" in line for line in lines)  # and as much of what is at hand as there is room for
