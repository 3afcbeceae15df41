"""The queries that the documentation shows give the report's numbers, in a run that has controls."""

import json
import re
from pathlib import Path

import pytest

from dualscope import Run, run_study
from dualscope.findings.summary import ALL_TASKS

DOCS = Path(__file__).parents[2] / "docs"
STUDY = {
    "models": ["embedded"],
    "tasks": ["embedded-sst2", "embedded-agnews"],
    "variants": ["trained", "untrained"],
    "learners": ["gd"],
    "controls": ["random-labels", "random-update", "redraw"],
    "lr": 1.0,
    "shots": 4,
    "seeds": 2,
    "queries": 4,
}


def _documented() -> dict[str, str]:
    """Every statement over `rows` that the pages and the notebooks show, on one line, by where it stands."""
    found = {}
    for page in sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]):
        text = page.read_text(encoding="utf-8")
        if page.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        for i, quoted in enumerate(re.findall(r'query\(\s*((?:"[^"]*"\s*)+)', text)):
            found[f"{page.relative_to(DOCS)}:{i}"] = "".join(re.findall(r'"([^"]*)"', quoted))
    return found


DOCUMENTED = _documented()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    outcome = run_study(STUDY, tmp_path_factory.mktemp("queries") / "run", device="cpu")
    assert outcome.complete, outcome.failures
    assert isinstance(outcome.run, Run)
    return outcome.run


def test_there_are_queries() -> None:
    assert {where.partition(":")[0] for where in DOCUMENTED} >= {"studies.md", "tutorial.md"}
    assert sum("learner" in sql for sql in DOCUMENTED.values()) >= 2


@pytest.mark.parametrize("where", [name for name, sql in DOCUMENTED.items() if "learner" in sql])
def test_grouping_by_learner_gives_the_reports_numbers(run: Run, where: str) -> None:
    reported = {
        (row["learner"], row["variant"]): row["value"]
        for row in run._data.sources[0].summary
        if row["metric"] == "sim_aou" and row["task"] == ALL_TASKS
    }
    assert {"gd", "gd/random-labels", "gd/random-update", "gd/redraw"} <= {name for name, _ in reported}
    rows = run.query(DOCUMENTED[where]).to_pylist()
    assert {(row["learner"], row["variant"]) for row in rows} == set(reported)
    for row in rows:
        (value,) = [value for name, value in row.items() if isinstance(value, float)]
        places = 2 if "round" in DOCUMENTED[where] else 12
        assert value == pytest.approx(reported[row["learner"], row["variant"]], abs=0.6 * 10**-places)


@pytest.mark.parametrize("where", [name for name, sql in DOCUMENTED.items() if "learner" not in sql])
def test_other_queries_are_answered(run: Run, where: str) -> None:
    assert run.query(DOCUMENTED[where]).num_rows > 0


def test_a_table_of_a_learner_is_of_it_alone(run: Run) -> None:
    rows = run.table(learner="gd", metric="sim_aou", layer=None).to_pylist()
    assert {row["control"] for row in rows} == {None}
    assert len(rows) == len(STUDY["tasks"]) * len(STUDY["variants"]) * 2  # type: ignore[arg-type]
    controlled = run.table(learner="gd/random-labels", metric="sim_aou", layer=None).to_pylist()
    assert {row["control"] for row in controlled} == {"random-labels"}
