"""Run folders that a disk, a crash or somebody's hand has damaged: words, and what can be computed again is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualscope import Run
from dualscope.studies.provenance import known
from tests.hostile.damaged import Made
from tests.hostile.test_generated import told

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))


def _cut(file: Path, other: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def _garble(file: Path, other: Path) -> None:
    data = bytearray(file.read_bytes())
    for at in range(0, len(data), max(1, len(data) // 50)):
        data[at] ^= 0x5A
    file.write_bytes(data)


def _replace(file: Path, other: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)  # a name that leads to itself: what even root cannot read


def _folder(file: Path, other: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "cut": _cut,
    "emptied": lambda file, other: file.write_bytes(b""),
    "garbled": _garble,
    "of another type": lambda file, other: file.write_bytes(b'["another", {"type": 3}]\n'),
    "of another": lambda file, other: file.write_bytes(other.read_bytes() if other.exists() else b'{"a": 1}\n'),
    "unreadable": _replace,
    "missing": lambda file, other: file.unlink(),
    "a folder": _folder,
}
FILES = (
    *("study.yaml", "provenance.json", "provenance/*", "cells/*", "queries/*", "traces/*", "choices/*"),
    *("summary.csv", "summary_of.json", "verdict.json", "report.html", "failures/*", "claims/*", "aside/*"),
)
PACKED = ("packed/index/*", "packed/rows/*/*/*", "packed/queries/*/*/*")
KINDS = [(file, damage) for file in (*FILES, *PACKED) for damage in DAMAGES]
KINDS.remove(("packed/index/*", "missing"))  # a part without its index is not there: its packing was not finished
LOOKED_AT = (
    *("cells/*", "packed/rows/*/*/*", "queries/*", "packed/index/*"),
    *("provenance.json", "summary.csv", "traces/*", "study.yaml"),
)
SAMPLE = list(zip(LOOKED_AT, DAMAGES, strict=True))  # each kind of damage, and each of what matters most
CHOSEN = KINDS if WHOLE else SAMPLE
LOST = ("unreadable", "a folder")  # of these the content is not at fault: nothing is deleted


def test_there_are_enough() -> None:
    assert len(KINDS) >= 46
    assert set(SAMPLE) <= set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "damage"), CHOSEN)
def test_damage(made: Made, cli: Callable[..., Any], tmp_path: Path, file: str, damage: str) -> None:
    _check_damage(made, cli, tmp_path, file, damage)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES if WHOLE else ["garbled"])
def test_damaged_responses(responded: Made, cli: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    _check_damage(responded, cli, tmp_path, "responses/*", damage)


def _check_damage(made: Made, cli: Callable[..., Any], tmp_path: Path, file: str, damage: str) -> None:
    out = Path(shutil.copytree(made.folder, tmp_path / "run"))
    if file in PACKED:
        assert cli("pack", out).code == 0
    victim, *others = sorted(out.glob(file))
    DAMAGES[damage](victim, others[0] if others else out / "none")
    name = str(victim.relative_to(out))

    def check(code: int, text: str) -> None:
        assert code in (0, 1, 2), text
        assert "Traceback" not in text
        assert code == 0 or name in text.replace("\n", "") or Path(name).name in text.replace("\n", ""), text

    with told(name):  # opened from Python: every failure is an InputError
        run = Run.open(out)
        run.query("select count(*) from rows")
        run.failures()
        known(run)
    report = cli("report", out, "--out", tmp_path / "report.html")
    check(report.code, report.err + report.out)
    again = cli(*made.command, "--out", out, "--no-report")
    check(again.code, again.err + again.out)
    if again.code == 0:
        assert repr(Run.open(out).rows().to_pydict()) == made.rows
    else:
        assert damage in LOST
        assert victim.is_symlink() or victim.is_dir()  # nothing was deleted


PARTS = ("cells", "queries", "claims", "aside", "provenance", "packed", "failures", "texts")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS if WHOLE else ["aside", "cells"])
def test_a_file_where_a_folder_should_be(made: Made, cli: Callable[..., Any], tmp_path: Path, part: str) -> None:
    """It is named, and stays; it was once taken for another process at work."""
    out = Path(shutil.copytree(made.folder, tmp_path / "run"))
    shutil.rmtree(out / part, ignore_errors=True)
    (out / part).write_text("x")
    for command in (("report", out), ("pack", out), (*made.command, "--out", out, "--no-report")):
        done = cli(*command)
        said = " ".join((done.err + done.out).split())
        assert done.code in (0, 1, 2), said
        assert "Traceback" not in said
        assert "being packed already" not in said
        assert done.code == 0 or part in said or "no cell of this run" in said, said
    assert (out / part).read_text() == "x"
