"""The table for papers: whole, escaped, with the numbers of the verdict."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dualscope.report.answer_table import latex_table, write_latex
from dualscope.report.report_data import Data
from tests.report.made import make_run


def test_the_table_has_every_answer_with_its_interval(plain_run: Path, tmp_path: Path) -> None:
    text = write_latex([plain_run], tmp_path / "t" / "answers.tex").read_text()
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 5  # a head, two tasks, two learners
    assert all(line.count("&") == 5 for line in lines)
    assert re.search(r"sst2 & \\texttt\{gd\} & \$\.\d\d\\,\[\.\d\d, \.\d\d\]\$ & ", text)
    assert "strongest control" in text
    for line in lines[1:]:  # what is not decided is decided by none
        assert (line.split(" & ")[3] == "--") == ("above" not in line.split(" & ")[5]), line
    for word in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert word in text


def test_names_are_escaped_and_models_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, tasks=["a_b & 50%"], model=name, seeds=3) for name in ("m_1", "m_2")]
    text = latex_table(Data(runs))
    assert r"a\_b \& 50\%" in text
    assert text.splitlines()[6].startswith("model & task")
    assert r"m\_1: m\_1 &" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_latex_makes_a_page_of_it(tmp_path: Path) -> None:
    """Real LaTeX: no error, and no line wider than an article's."""
    run = make_run(tmp_path / "run", tasks=["a_b & 50%", "sst2"], level=lambda variant, learner: -0.3)
    write_latex([run], tmp_path / "answers.tex")
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{answers}\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "Output written on paper.pdf (1 page" in done.stdout
    assert "Overfull" not in done.stdout


def test_what_moves_when_the_labels_change_is_the_table(response_run: Path) -> None:
    text = latex_table(Data([response_run]))
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert lines[0] == r"task & learner & response & if it were & answer \\"
    assert [line for line in lines if "multicolumn" in line] == [
        r"\multicolumn{5}{@{}l}{\emph{what the model answers}} \\",
        r"\multicolumn{5}{@{}l}{\emph{inside the model}} \\",
    ]
    number = r"-?\d?\.\d\d"
    gd = rf"embedded-sst2 & \\texttt\{{gd\}} & \${number}\\,\[{number}, {number}\]\$ & "
    assert sum(bool(re.match(gd, line)) for line in lines) == 2, text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_the_answers_fit_into_a_column_of_two(response_run: Path, tmp_path: Path) -> None:
    write_latex([response_run], tmp_path / "answers.tex")
    table = r"\begin{table}\input{answers}\caption{Answers.}\end{table}Text."
    (tmp_path / "paper.tex").write_text(
        r"\documentclass[twocolumn]{article}\usepackage{booktabs}\begin{document}" + table + r"\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
