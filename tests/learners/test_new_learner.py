"""A new learner is one file, with its own title, colour and mark, and decides; in the package and as a plugin alike."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dualscope

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
OFFERED = """
import sys
from dualscope.explorer.offer import Offer
print([one["colour"] for one in Offer.of(plugins=sys.argv[1:]).learners() if one["name"] == "blank-page"])
"""


@pytest.mark.parametrize("where", ["in the package", "as a plugin"])
def test_it_is_shown_in_list_report_explorer_and_verdict(where: str, tmp_path: Path) -> None:
    assert len(LEARNER.splitlines()) == 15
    source = Path(dualscope.__file__).parents[1]
    plugins = []
    if where == "in the package":
        copied = tmp_path / "src"
        shutil.copytree(source / "dualscope", copied / "dualscope", ignore=shutil.ignore_patterns("__pycache__"))
        (copied / "dualscope" / "learners" / "blank_page.py").write_text(LEARNER)
        source = copied
    else:
        plugins = [str(tmp_path / "mine.py")]
        Path(plugins[0]).write_text(LEARNER)
    environment = {**os.environ, "PYTHONPATH": str(source)}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    given = [text for file in plugins for text in ("--plugin", file)]
    assert re.search(r"blank-page +null +As many separators", python("-m", "dualscope", "list", "learners", *given))
    assert python("-c", OFFERED, *plugins) == "['navy']\n"
    python("-m", "dualscope", "run", *STUDY.split(), *given, "--out", str(tmp_path / "run"))
    (verdict,) = json.loads((tmp_path / "run" / "verdict.json").read_text())["verdicts"]
    (answer,) = verdict["answers"]
    (deciding,) = [one for one in answer["comparisons"] if one["control"] == "blankness"]
    assert (deciding["kind"], deciding["decides"]) == ("blankness", True)
    # The page is made where the code of a plugin is not loaded.
    python("-m", "dualscope", "report", str(tmp_path / "run"), "--out", str(tmp_path / "again.html"))
    page = (tmp_path / "again.html").read_text(encoding="utf-8")
    assert "a blank page" in page
    assert "blankness" in page
