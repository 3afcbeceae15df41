"""The rule point by point: by which measure a learner is judged, and which controls decide."""

import numpy as np
import pytest

from dualscope.core.learning import Learning
from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import verdict
from tests.findings.made import NULL, QUERIES, evidence, put, who


def test_a_control_that_teaches_is_marked_and_does_not_decide() -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, "gd-random-labels", "sim_aou", QUERIES, np.full(len(QUERIES), 0.5))
    (strict,) = verdict(made).answers
    assert strict.answer == "not above"
    rng = np.random.default_rng(4)
    for seed in range(6):
        right = (rng.random(len(QUERIES)) < 0.95).astype(float)
        put(made, "sst2", "trained", seed, "gd-random-labels", "correct", QUERIES, right)
    (answer,) = verdict(made).answers
    (marked,) = [c for c in answer.comparisons if c.control == "random-labels"]
    assert marked.teaches
    assert not marked.decides
    assert answer.answer == "above the controls"
    assert "it is no null and does not decide" in " ".join(answer.sentences)


@pytest.mark.parametrize(("name", "called"), [("zero-shot-offset", "position"), ("dilution", "dilution")])
def test_position_and_dilution_decide_by_their_own_likeness(name: str, called: str) -> None:
    """Also where they beat zero-shot: they hold no demonstration, so it is nothing that they were taught."""
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, name, "sim_aou", QUERIES, np.full(len(QUERIES), 0.6))
        put(made, "sst2", "trained", seed, name, "correct", QUERIES, np.ones(len(QUERIES)))
    made.roles[Learning(name)] = "null"
    (answer,) = verdict(made).answers
    assert answer.answer == "not above"
    assert answer.decided_by is not None
    assert answer.decided_by.control == called


def test_what_is_left_beyond_dilution_has_to_be_above_nothing() -> None:
    made, rng = evidence(), np.random.default_rng(2)
    for seed in range(6):
        left = 0.01 * rng.standard_normal(len(QUERIES))
        put(made, "sst2", "trained", seed, "gd", "sim_aou_orthogonal", QUERIES, left)
    (answer,) = verdict(made).answers
    assert answer.answer == "not above"
    assert answer.comparisons[-1].control == "beyond dilution"


def by_predictions(share: float, **controls: float | None) -> Evidence:
    """A task vector beside gd: it has an explained share and no attention outputs of all layers."""
    made, rng, task_vector = evidence(untrained=0.05), np.random.default_rng(3), who("task-vector")
    others: dict[str, tuple[Learning, str]] = {
        "random_labels": (task_vector.under("random-labels"), "trained"),
        "other_task": (task_vector.under("other-task"), "trained"),
        "random_update": (task_vector.under("random-update"), "trained"),
        "null": (NULL, "trained"),
        "untrained": (task_vector, "untrained"),
        "gd": (who("gd"), "trained"),
    }
    for seed in range(6):

        def noise() -> np.ndarray:
            return 0.03 * (rng.standard_normal() / 3 + rng.standard_normal(len(QUERIES)))

        put(made, "sst2", "trained", seed, task_vector, "explained", QUERIES, share + noise())
        right = (rng.random(len(QUERIES)) < 0.85).astype(float)
        put(made, "sst2", "trained", seed, task_vector, "correct", QUERIES, right)
        for name, (learning, variant) in others.items():
            level = controls.get(name)
            if level is not None:
                put(made, "sst2", variant, seed, learning, "explained", QUERIES, level + noise())
    made.roles[NULL] = "null"
    return made


def test_what_has_no_attention_outputs_is_judged_by_its_explained_share() -> None:
    found = verdict(by_predictions(0.6, random_labels=0.1, other_task=-0.3, null=0.05, gd=0.7))
    answer = found["sst2", "task-vector"]
    assert (answer.answer, answer.measure) == ("above the controls", "explained")
    assert answer.value.mean == pytest.approx(0.6, abs=0.05)
    assert {c.control for c in answer.comparisons if c.decides} == {
        "random-labels",
        "other-task",
        "null-context itself",
    }
    assert "explained is 0.6" in answer.sentences[0]
    assert "the explained share of a task vector is .6" in dict(found.said)["task-vector"]
    assert found["sst2", "gd"].measure == "sim_aou"  # it has both, and is asked for the strong claim
    assert not any("untrained" in sentence for sentence in answer.sentences)


@pytest.mark.parametrize("control", ["random_labels", "other_task", "random_update", "null", "untrained"])
def test_an_explained_share_that_a_control_has_too_is_not_above(control: str) -> None:
    levels = {"random_labels": 0.1, "null": 0.05, control: 0.62}
    answer = verdict(by_predictions(0.6, **levels))["sst2", "task-vector"]
    assert answer.answer == "not above"
    assert answer.decided_by is not None
    assert answer.decided_by.control_value.mean == pytest.approx(0.62, abs=0.05)


def test_an_explained_share_needs_a_control_and_something_to_explain() -> None:
    alone = verdict(by_predictions(0.6))["sst2", "task-vector"]
    assert (alone.answer, alone.missing) == ("inconclusive", ("null controls",))
    nothing = verdict(by_predictions(float("nan"), random_labels=0.1))
    assert nothing["sst2", "task-vector"].answer == "not testable"
    assert "nothing to explain" in nothing["sst2", "task-vector"].sentences[0]
    assert "no more than another draw" in dict(nothing.said)["task-vector"]
