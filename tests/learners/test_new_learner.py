"""A new learner is one file, with its own title, colour and mark, and decides; in the package and as a plugin alike."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dualscope
from tests.conftest import forgetting

LEARNER = '''"""A null of our own."""
from dualscope import LEARNERS, Learner


@LEARNERS.register("blank-page")
class BlankPage(Learner):
    """As many separators as there are demonstrations, and then the query."""

    role, changes_model = "null", False
    title, colour, mark, decides = "a blank page", "@navy", "star", "blankness"

    def learn(self, bench, lr, options):
        lesson = bench.lesson
        blank = (*lesson.bos, *lesson.separator * len(lesson.demonstrations))
        return bench.after(blank, bench.context_want)
'''
STUDY = (
    "--task embedded-sst2 --learner gd --learner blank-page --shots 4 --seeds 2 --queries 6 --lr 1.0 "
    "--variant trained --jobs 1"
)
COMMANDS: list[list[str]] = [["list", "learners"], ["run", *STUDY.split(), "--out", "run"]]
REPORT = ["report", "run", "--out", "again.html"]
WITH_THE_PACKAGE = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from dualscope.cli import main
from dualscope.explorer.offer import Offer

said = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["dualscope", *words]
    with redirect_stdout(StringIO()) as out:
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, words
    said.append(out.getvalue())
print(json.dumps([said[0], Offer.of().learners()]))
"""


def is_shown(listed: str, offered: list[dict[str, Any]], folder: Path) -> None:
    """In the list, the explorer, the verdict, and a page that was made of the stored run."""
    assert re.search(r"blank-page +null +As many separators", listed)
    assert [one["colour"] for one in offered if one["name"] == "blank-page"] == ["navy"]
    (verdict,) = json.loads((folder / "run" / "verdict.json").read_text())["verdicts"]
    (answer,) = verdict["answers"]
    (deciding,) = [one for one in answer["comparisons"] if one["control"] == "blankness"]
    assert (deciding["kind"], deciding["decides"]) == ("blankness", True)
    page = (folder / "again.html").read_text(encoding="utf-8")
    assert "a blank page" in page
    assert "blankness" in page


def test_in_the_package_it_is_shown_everywhere(tmp_path: Path) -> None:
    assert len(LEARNER.splitlines()) == 15
    source = tmp_path / "src"
    package = Path(dualscope.__file__).parent
    shutil.copytree(package, source / "dualscope", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "dualscope" / "learners" / "blank_page.py").write_text(LEARNER)
    command = [sys.executable, "-c", WITH_THE_PACKAGE, json.dumps([*COMMANDS, REPORT])]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    listed, offered = json.loads(done.stdout)
    is_shown(listed, offered, tmp_path)


def test_as_a_plugin_it_is_shown_everywhere(
    cli: Callable[..., Any], forget: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualscope.explorer.offer import Offer
    from dualscope.learners import LEARNERS

    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "mine.py"
    plugin.write_text(LEARNER)
    with forgetting(LEARNERS):
        listed, run = (cli(*words, "--plugin", plugin) for words in COMMANDS)
        offered = Offer.of(plugins=[str(plugin)]).learners()
    assert (listed.code, run.code) == (0, 0), run.err
    assert "blank-page" not in LEARNERS
    assert cli(*REPORT).code == 0  # where the code of a plugin is not loaded
    is_shown(listed.out, offered, tmp_path)
