"""What is said of the hypotheses of a task."""

from typing import Any

import pytest

from dualscope.core.rows import SummaryRow
from dualscope.findings.ranking import rankings, sentences


def row(learner: str, metric: str, value: float, seeds: int, control: Any = None) -> SummaryRow:
    return {
        "model": "tiny", "variant": "trained", "task": "sst2", "shots": 4, "learner": learner, "control": control,
        "role": "hypothesis" if control is None else "null", "lr": None, "demo_labels": "gold", "corrupt": "both",
        "queries_from": None, "options": "{}",
            "dtype": "float32", "read_at": "prompt-end", "chat": False,
            "balanced": False, "gd_demonstrations": "same", "gd_order": "same", "subset": "all",
            "intervention": None, "family": None, "metric": metric, "value": value,
        "low": value - 0.1, "high": value + 0.1, "reference": None if metric == "accuracy" else "in-context",
        "seeds": seeds, "queries": 9,
        "each": (value,) * seeds,
    }  # fmt: skip


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_seeds_with_nothing_to_explain_are_said(empty: int) -> None:
    own = row("task-vector", "explained", 0.6, 5)
    own["each"] = (*own["each"][empty:], *(float("nan"),) * empty)
    (ranking,) = rankings([own, row("task-vector", "accuracy", 0.8, 5)])
    assert ranking.hypotheses[0].empty_seeds == empty
    said = [words for words in ranking.words() if "hardly changes the predictions" in words]
    assert [words.startswith(f"In {empty} of 5 seeds") for words in said] == [True] * bool(empty)


def test_every_seed_is_shown() -> None:
    own, other = row("task-vector", "explained", 0.3, 3), row("kernel", "explained", 0.1, 1)
    own["each"] = (0.9, 0.1, -0.1)
    (ranking,) = rankings([own, other])
    each = "(each seed: .90, .10, \N{MINUS SIGN}.10)"
    assert each in ranking.words()[0]
    assert each in sentences([own, other])[0]
    assert ranking.hypotheses[1].each == (0.1,)


def test_learners_without_a_share_are_not_ranked() -> None:
    rows = [row("lost", "explained", float("nan"), 3), row("gd", "explained", 0.2, 3)]
    for order in (rows, rows[::-1]):
        (ranking,) = rankings(order)
        assert [one.label for one in ranking.hypotheses] == ["gd"]
        assert ranking.empty == ("lost",)
        assert ranking.words()[0].startswith("sst2: gd explains most")


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (0.30, "Under random-update it explains as much, 0.30"),
        (0.31, "Under random-update it explains as much, 0.31"),
        (0.29, "Of that it keeps 0.29 [0.19, 0.39] under random-update: that much is not the task"),
        (0.01, "Of that it keeps 0.01 [-0.09, 0.11] under random-update: that much is not the task"),
        (0.0, "Its controls take all of it away: under random-update it explains 0.00"),
    ],
)
def test_a_control_that_has_as_much_is_told_from_one_that_keeps_some(control: float, said: str) -> None:
    rows = [row("gd", "explained", 0.3, 3), row("gd", "explained", control, 3, "random-update")]
    (ranking,) = rankings(rows)
    assert ranking.words()[1].startswith(said)


@pytest.mark.parametrize(("lost", "known"), [("random-labels", "random-update"), ("random-update", "random-labels")])
def test_a_control_without_a_share_is_not_the_strongest(lost: str, known: str) -> None:
    controls = [row("gd", "explained", float("nan"), 3, lost), row("gd", "explained", 0.1, 3, known)]
    (ranking,) = rankings([row("gd", "explained", 0.3, 3), *controls])
    strongest = ranking.hypotheses[0].strongest
    assert strongest is not None
    assert strongest[0] == known


def test_answers_to_other_queries_stand_beside() -> None:
    rows = [row("gd", "explained", 0.3, 3), row("gd", "explained_mismatched", -0.05, 3)]
    (ranking,) = rankings(rows)
    assert "Its answers to other queries explain -0.05 [-0.15, 0.05]." in ranking.words()


def test_nothing_explains_anything() -> None:
    rows = [row("gd", "explained", -0.2, 3), row("gd", "explained", 0.1, 3, "random-update")]
    (ranking,) = rankings([*rows, row("task-vector", "explained", -3.0, 3)])
    assert ranking.words() == [
        "sst2: no hypothesis explains anything; the nearest is gd, -0.20 [-0.30, -0.10] (each seed: "
        "\N{MINUS SIGN}.20, \N{MINUS SIGN}.20, \N{MINUS SIGN}.20)."
    ]
