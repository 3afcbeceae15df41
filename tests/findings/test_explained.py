"""What is said of the hypotheses of a task."""

from typing import Any

import pytest

from dualscope.core.rows import SummaryRow
from dualscope.findings.explained import rankings


def row(learner: str, metric: str, value: float, seeds: int, control: Any = None) -> SummaryRow:
    return {
        "model": "tiny", "variant": "trained", "task": "sst2", "shots": 4, "learner": learner, "control": control,
        "role": "hypothesis" if control is None else "null", "lr": None, "demo_labels": "gold", "corrupt": "both",
        "queries_from": None, "options": "{}", "metric": metric, "value": value, "low": value - 0.1,
        "reference": None if metric == "accuracy" else "in-context", "high": value + 0.1, "seeds": seeds, "queries": 9,
    }  # fmt: skip


@pytest.mark.parametrize(("counted", "left_out"), [(5, 0), (4, 1), (2, 3)])
def test_seeds_with_nothing_to_explain_are_said(counted: int, left_out: int) -> None:
    (ranking,) = rankings(
        [row("task-vector", "explained", 0.6, counted), row("task-vector", "accuracy", 0.8, 5)]
    )
    assert ranking.hypotheses[0].seeds_left_out == left_out
    said = [words for words in ranking.words() if "no more than another draw" in words]
    assert [words.startswith(f"In {left_out} of 5 seeds") for words in said] == [True] * bool(left_out)


def test_a_share_alone_leaves_nothing_out() -> None:
    (ranking,) = rankings([row("task-vector", "explained", 0.6, 3)])
    assert not ranking.hypotheses[0].seeds_left_out


def test_nothing_explains_anything() -> None:
    rows = [row("gd", "explained", -0.2, 3), row("gd", "explained", 0.1, 3, "random-update")]
    (ranking,) = rankings([*rows, row("task-vector", "explained", -3.0, 3)])
    assert ranking.words() == [
        "sst2: no hypothesis explains anything; the nearest is gd, -0.20 [-0.30, -0.10]."
    ]
