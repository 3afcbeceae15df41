"""What is shown while a run goes on, and plugins that are installed packages."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dualscope.studies.execute.outcome import Outcome, Started
from dualscope.studies.execute.progress import Reporter
from dualscope.studies.plugins import load_plugins, plugins_digest


def _show(terminal: bool) -> str:
    text = io.StringIO()
    with Reporter(Console(file=text, force_terminal=terminal, width=120, highlight=False)) as reporter:
        reporter.begin(3, 1)
        reporter.tell(Started("cell [a]"))
        reporter.tell(Outcome("1", "cell [a]", "stored", 1.25))
        reporter.tell(Outcome("2", "cell b", "failed", reason="no [luck]"))
    return text.getvalue()


def test_plain_lines() -> None:
    assert _show(terminal=False).splitlines() == [
        "2 of 3 to do",
        "[2/3] cell [a]: 1.2 s",
        "[3/3] FAILED cell b: no [luck]",
    ]


def test_bars_on_a_terminal() -> None:
    shown = _show(terminal=True)
    assert "FAILED cell b: no [luck]" in shown
    assert "3/3" in shown
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
