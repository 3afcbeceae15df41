"""A disk that is full when the findings and the page are written: what was computed counts, and is still shown."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can be mounted by root alone")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr}")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def test_the_page_has_no_room(cli: Callable[..., Any], fields: dict[str, Any], small: Path) -> None:
    out = small / "run"
    command = (
        *("run", "--model", fields["models"][0], "--task", fields["tasks"][0], "--seeds", 2, "--shots", 4),
        *("--queries", 12, "--lr", 0.1, "--learner", "gd", "--device", "cpu", "--jobs", 1, "--out", out),
    )
    result = cli(*command)  # the page alone has more than two megabytes
    assert result.code == 1, result.err
    assert "accuracy" in result.out
    counted = re.search(r"(\d+) cells, \1 computed now", result.out)
    assert counted, result.out
    assert "the disk that holds the run folder is full" in " ".join(result.out.split())
    assert "Traceback" not in result.out + result.err
    assert not (out / "report.html").exists()
    assert not [path.name for path in out.iterdir() if path.name.startswith(".report")]
    assert len(list((out / "cells").iterdir())) == int(counted[1])
    page = cli("report", out)
    assert page.code == 1
    assert "the disk is full" in page.err
    ballast = small / "ballast"  # now not even the summary has room
    (out / "summary.csv").unlink()
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    again = cli(*command, "--no-report")
    assert again.code in (1, 2), again.out
    assert "full" in again.out + again.err or "No space left" in again.out + again.err
    assert "Traceback" not in again.out + again.err
