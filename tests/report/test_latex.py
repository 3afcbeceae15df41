"""The table for papers: whole, escaped, with the numbers of the verdict."""

import re
from pathlib import Path

from dualscope.report.data import Data
from dualscope.report.latex import latex_table, write_latex
from tests.report.made import make_run


def test_the_table_has_every_answer_with_its_interval(plain_run: Path, tmp_path: Path) -> None:
    text = write_latex([plain_run], tmp_path / "t" / "answers.tex").read_text()
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 5  # a head, two tasks, two learners
    assert all(line.count("&") == 5 for line in lines)
    assert re.search(r"sst2 & \\texttt\{gd\} & \$0\.\d{3}\\;\[0\.\d{3}, 0\.\d{3}\]\$ & untrained", text)
    for word in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert word in text


def test_names_are_escaped_and_models_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, tasks=["a_b & 50%"], model=name, seeds=3) for name in ("m_1", "m_2")]
    text = latex_table(Data(runs))
    assert r"a\_b \& 50\%" in text
    assert text.splitlines()[3].startswith("model & task")
    assert r"m\_1: m\_1 &" in text
