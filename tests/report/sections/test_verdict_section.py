"""The verdict's numbers are those of the rows, and it says what they say."""

import html
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dualscope.findings.answer import RULE
from dualscope.report import write_report
from dualscope.report.charts.chart import Judgement
from dualscope.report.report_data import Data
from dualscope.report.sections import verdict_section as verdict
from dualscope.report.table import Number
from tests.report.made import make_run


def judgement(folder: Path) -> Judgement:
    section = verdict.section(Data([folder]))
    assert section is not None
    return next(item for item in section.items if isinstance(item, Judgement))


def values(run: Path, task: str, variant: str, learner: str) -> np.ndarray:
    """[seeds, queries] straight from the files."""
    found = {}
    for path in (run / "cells").iterdir():
        first = pq.read_table(path).slice(0, 1).to_pylist()[0]
        where = first["task"], first["variant"], first["learner"], first["control"]
        if where == (task, variant, learner, None):
            found[first["seed"]] = pq.read_table(run / "queries" / path.name)["sim_aou"].to_numpy()
    return np.array([found[seed] for seed in sorted(found)])


def test_numbers_are_those_of_the_rows(plain_run: Path, page: Path) -> None:
    found = judgement(plain_run)
    table = {(row[0], row[1]): row for row in found.table.rows}

    def number(task: str, learner: str, column: int) -> Number:
        cell = table[task, learner][column]
        assert isinstance(cell, Number)
        return cell

    at = found.table.columns.index("less untrained")
    for task in ("sst2", "subj"):
        for learner in ("gd", "lcgd"):
            trained = values(plain_run, task, "trained", learner)
            apart = trained - values(plain_run, task, "untrained", learner)
            assert number(task, learner, 3).value == pytest.approx(trained.mean())
            less = number(task, learner, at)
            assert less.value == pytest.approx(apart.mean())
            assert less.low is not None
            assert less.high is not None
            assert less.low < apart.mean() < less.high
            assert f"<b>{trained.mean():.3f}</b>" in page.read_text()
    beside = found.table.columns.index("less gd")
    apart = values(plain_run, "sst2", "trained", "lcgd") - values(plain_run, "sst2", "trained", "gd")
    assert number("sst2", "lcgd", beside).value == pytest.approx(apart.mean())
    assert number("sst2", "gd", beside).value is None
    assert found.lines == (("gd", "above the controls on all 2 tasks"), ("lcgd", "above the controls on all 2 tasks"))


def test_untrained_beats_trained_is_said(tmp_path: Path) -> None:
    def upside_down(variant: str, learner: str) -> float:
        return 0.6 if variant == "untrained" else 0.2

    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"], level=upside_down)
    found = judgement(run)
    assert found.remarks == ("Untrained beats trained for gd on sst2.",)
    assert found.lines == (("gd", "not above the controls on sst2"),)
    assert "Untrained beats trained for gd on sst2." in write_report([run], tmp_path / "r.html").read_text()


def test_a_control_that_teaches_is_called_no_null(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2", "subj"], learners=["gd", "gd/random-labels"])
    said = (
        "On sst2, subj something that should teach nothing did teach the model (it beat zero-shot and chance), so one "
        "comparison does not count there: “random-labels”, the same learner on random labels (for gd)."
    )
    assert judgement(run).remarks == (said,)
    assert said in write_report([run], tmp_path / "r.html").read_text()


def test_no_learning_is_not_testable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], learners=["gd"])
    zero = [p for p in (run / "cells").iterdir() if pq.read_table(p)["learner"][0].as_py() == "zero-shot"]
    for path in zero:  # zero-shot knows everything already
        queries = run / "queries" / path.name
        table = pq.read_table(queries)
        index = table.column_names.index("prediction")
        pq.write_table(table.set_column(index, "prediction", table["label"]), queries)
    found = judgement(run)
    assert found.lines == (("gd", "not testable on sst2"),)
    assert any(
        "In-context learning does not clearly beat zero-shot and chance on sst2" in text for text in found.reasons
    )


def test_rule_stands_beside_it(page: Path) -> None:
    text = html.unescape(page.read_text())
    for line in RULE.split("\n"):
        assert line in text


def test_embedded_says_what_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["embedded-sst2"], model="embedded")
    text = write_report([run], tmp_path / "r.html").read_text()
    assert "was trained on synthetic tasks of the kind that it is measured on" in text
    assert "nothing about large language models" in text


def test_missing_baseline_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", variants=["trained"], learners=["gd"])
    text = html.unescape(write_report([run], tmp_path / "r.html").read_text())
    assert "these controls were not measured: untrained" in text
    missing = text.partition("Not in these runs: ")[2].partition("</p>")[0]
    for said in ("Kendall's tau", "alpha", "what was not varied: learning rate"):
        assert said in missing


def test_every_answer_is_explained(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall(r'class="sentences answer"', text)) == 4
