"""What one comparison says, from its interval and its p-value alone."""

import math

import numpy as np
import pytest
from benchmarks.error_rates import Made, said
from benchmarks.error_rates import learned as rate_of_learning

from dualscope.core.estimate import Interval
from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import AgainstControl, Answer, ComparisonOutcome, beats, learned, sentences_of
from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import verdict
from tests.findings.made import NULL, QUERIES, evidence, key, put, who


def interval(low: float, mean: float, high: float, seeds: int = 5, each: tuple[float, ...] | None = None) -> Interval:
    return Interval(mean, low, high, seeds, 100, (mean,) * seeds if each is None else each)


def against(difference: Interval, p_corrected: float = 0.01, p_below: float = 1.0) -> AgainstControl:
    value = interval(0.1, 0.2, 0.3)
    return AgainstControl("dilution", True, value, difference, 0.01, p_corrected, p_below, kind="dilution")


@pytest.mark.parametrize(
    ("difference", "p_corrected", "p_below", "outcome"),
    [
        (interval(0.05, 0.1, 0.15), 0.01, 0.5, "above"),
        (interval(0.05, 0.1, 0.15), 0.20, 0.5, "unclear"),  # one task alone would have shown it
        (interval(0.05, 0.1, 0.15), 0.01, 0.01, "above"),  # far from the margin, above it
        (interval(-0.05, 0.01, 0.07), 0.60, 0.5, "unclear"),  # a mean near 0 is not enough for a no
        (interval(-0.05, -0.01, 0.019), 0.60, 0.04, "not above"),
        (interval(-0.05, -0.01, 0.019), 0.60, 0.20, "unclear"),  # one control alone would have shown it
        (interval(0.001, 0.01, 0.019), 0.01, 0.04, "not above"),  # above 0, by less than anybody cares for
        (interval(-0.15, -0.1, -0.05), 0.01, 0.5, "unclear"),  # p is two-sided: below is not above
        (interval(0.05, 0.1, 0.15, seeds=4), 0.01, 0.5, "unclear"),
        (interval(-0.9, -0.5, -0.1, seeds=4), 0.01, 0.01, "unclear"),
        (interval(0.05, 0.1, 0.15, each=(0.2, 0.1, 0.1, 0.1, -0.01)), 0.01, 0.5, "unclear"),  # not in most draws
        (interval(-0.3, -0.2, -0.1, each=(-0.9, -0.1, 0.03, 0.01, -0.1)), 0.01, 0.01, "unclear"),
        (interval(0.05, 0.1, 0.15, 8, each=(*(0.1,) * 7, -0.1)), 0.01, 0.5, "above"),
        (interval(0.05, 0.1, 0.15, 8, each=(*(0.1,) * 6, -0.1, -0.1)), 0.01, 0.5, "unclear"),
    ],
)
def test_outcomes(difference: Interval, p_corrected: float, p_below: float, outcome: ComparisonOutcome) -> None:
    assert against(difference, p_corrected, p_below).outcome == outcome


def test_only_a_whole_interval_above_0_beats_zero_shot() -> None:
    assert beats(interval(0.01, 0.1, 0.2))
    assert not beats(interval(-0.01, 0.1, 0.2))
    assert not beats(interval(0.0, 0.1, 0.2))
    assert not beats(interval(math.nan, 0.1, math.nan))
    assert not beats(None)


def test_only_a_whole_interval_below_0_is_beaten() -> None:
    assert against(interval(-0.3, -0.2, -0.1)).beaten
    assert not against(interval(-0.3, -0.1, 0.1)).beaten


def test_what_decided_is_the_nearest_of_those_that_made_the_answer() -> None:
    near = against(interval(-0.1, 0.001, 0.1))  # nearer, and unclear
    below = against(interval(0.004, 0.01, 0.016), p_below=0.01)
    far, shown = against(interval(0.2, 0.3, 0.4)), against(interval(-0.9, -0.8, -0.7))
    shown = AgainstControl("gd", False, shown.control_value, shown.difference, 0.01, 0.01)
    value = interval(0.2, 0.3, 0.4)

    def answer(word: str) -> AgainstControl | None:
        comparisons = (far, near, below, shown)
        made = Answer("t", LearnerSpec("gd"), "gd", word, value, value, value, comparisons, (), None, ())  # type: ignore[arg-type]
        return made.decided_by

    assert answer("not above") is below
    assert answer("inconclusive") is near


def test_learning_is_above_zero_shot_and_above_chance() -> None:
    gain = interval(0.1, 0.2, 0.3)
    assert learned(gain, interval(0.6, 0.7, 0.8), 0.5)
    assert not learned(gain, interval(0.4, 0.5, 0.6), 0.5)  # zero-shot was below chance
    assert not learned(interval(-0.1, 0.1, 0.3), interval(0.6, 0.7, 0.8), 0.5)
    assert not learned(gain, None, 0.5)
    assert not learned(None, interval(0.6, 0.7, 0.8), 0.5)


def test_each_seed_stands_beside_the_mean() -> None:
    value = interval(0.2, 0.3, 0.4, each=(0.2, 0.3, 0.4, 0.25, -0.35))
    made = Answer("t", LearnerSpec("gd"), "gd", "inconclusive", value, value, value, (), (), None, ())
    assert "each seed: .20, .30, .40, .25, \N{MINUS SIGN}.35" in next(iter(sentences_of(made)))


def test_a_control_that_teaches_is_marked_and_does_not_decide() -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, "gd/random-labels", "sim_aou", QUERIES, np.full(len(QUERIES), 0.5))
    (strict,) = verdict(made).answers
    assert strict.answer == "not above"
    rng = np.random.default_rng(4)
    for seed in range(6):
        right = (rng.random(len(QUERIES)) < 0.95).astype(float)
        put(made, "sst2", "trained", seed, "gd/random-labels", "correct", QUERIES, right)
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
    made.roles[LearnerSpec(name)] = "null"
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


WHOLE = 0.5  # nats from ICL that zero-shot leaves


def by_predictions(share: float, **controls: float | None) -> Evidence:
    """A task vector beside gd: it has an explained share and no attention outputs of all layers."""
    made, rng, task_vector = evidence(untrained=0.05), np.random.default_rng(3), who("task-vector")
    others: dict[str, tuple[LearnerSpec, str]] = {
        "random_labels": (task_vector.under("random-labels"), "trained"),
        "other_task": (task_vector.under("other-task"), "trained"),
        "random_update": (task_vector.under("random-update"), "trained"),
        "null": (NULL, "trained"),
        "untrained": (task_vector, "untrained"),
        "gd": (who("gd"), "trained"),
    }
    for seed in range(6):

        def add(learning: LearnerSpec, variant: str, level: float) -> None:
            noise = 0.03 * (rng.standard_normal() / 3 + rng.standard_normal(len(QUERIES)))
            left = WHOLE * (1 - level + noise)
            put(made, "sst2", variant, seed, learning, "kl_icl", QUERIES, left)  # noqa: B023
            whole = np.full(len(QUERIES), 0.001 if np.isnan(level) else WHOLE)
            put(made, "sst2", variant, seed, learning, "kl_icl_zero_shot", QUERIES, whole)  # noqa: B023

        add(task_vector, "trained", share)
        right = (rng.random(len(QUERIES)) < 0.85).astype(float)
        put(made, "sst2", "trained", seed, task_vector, "correct", QUERIES, right)
        for name, (learning, variant) in others.items():
            level = controls.get(name)
            if level is not None:
                add(learning, variant, level)
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
    assert f"explained is {answer.value.mean:.3f}" in answer.sentences[0]
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
    assert "hardly changes the answers" in dict(nothing.said)["task-vector"]


def test_random_labels_that_only_guess_decide_also_where_zero_shot_is_below_chance() -> None:
    """Zero-shot at .3, random labels at .5: they beat zero-shot and taught nothing."""
    made, rng = evidence(), np.random.default_rng(4)
    for seed in range(6):
        for learner, right in (("zero-shot", 0.3), ("gd/random-labels", 0.5)):
            where = key("sst2", "trained", learner, "correct")
            made.values.get(where, {}).pop(seed, None)
            answers = (rng.random(len(QUERIES)) < right).astype(float)
            put(made, "sst2", "trained", seed, learner, "correct", QUERIES, answers)
        put(made, "sst2", "trained", seed, "gd/random-labels", "sim_aou", QUERIES, np.full(len(QUERIES), 0.5))
    (answer,) = verdict(made).answers
    (compared,) = [c for c in answer.comparisons if c.control == "random-labels"]
    assert (compared.teaches, compared.decides) == (False, True)
    assert answer.answer == "not above"


def test_what_only_guesses_has_not_learned() -> None:
    """In-context learning that goes from .3 to .5 of two classes gained, and learned nothing."""
    made, rng = evidence(), np.random.default_rng(5)
    for seed in range(6):
        for learner, right in (("zero-shot", 0.3), ("in-context", 0.5)):
            made.values[key("sst2", "trained", learner, "correct")].pop(seed)
            answers = (rng.random(len(QUERIES)) < right).astype(float)
            put(made, "sst2", "trained", seed, learner, "correct", QUERIES, answers)
    (answer,) = verdict(made).answers
    assert answer.icl_gain is not None
    assert answer.icl_gain.low > 0
    assert answer.answer == "not testable"
    assert "guessing in 0.500" in " ".join(answer.sentences)


@pytest.mark.parametrize(("right", "decides"), [(0.9, False), (0.5, True)])
def test_a_null_context_decides_only_where_it_teaches_nothing(right: float, decides: bool) -> None:
    made, rng = evidence(), np.random.default_rng(6)
    for seed in range(6):
        put(made, "sst2", "trained", seed, NULL, "sim_aou", QUERIES, np.full(len(QUERIES), 0.6))
        answers = (rng.random(len(QUERIES)) < right).astype(float)
        put(made, "sst2", "trained", seed, NULL, "correct", QUERIES, answers)
    made.roles[NULL] = "null"
    (answer,) = verdict(made).answers
    found = {c.control: c.decides for c in answer.comparisons if "null-context" in c.control}
    assert found == {"null-context itself": decides, "likeness to null-context": decides}
    assert answer.answer == ("not above" if decides else "above the controls")


def test_seeds_of_the_gains_count_too() -> None:
    """Six seeds of likenesses and four of accuracies are four seeds."""
    made = evidence()
    for learner in ("zero-shot", "in-context", "gd"):
        by_seed = made.values[key("sst2", "trained", learner, "correct")]
        for seed in (4, 5):
            by_seed.pop(seed)
    (answer,) = verdict(made).answers
    assert answer.is_testable
    assert answer.value.seeds == 6
    assert answer.answer == "inconclusive"


def test_an_explained_share_is_a_ratio_of_sums() -> None:
    """One seed with little to explain and much left does not carry the mean; its value is shown."""
    made, vector = evidence(), who("task-vector")
    wholes, lefts = [1.0, 1.0, 1.0, 1.0, 1.0, 0.025], [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    for seed, (whole, left) in enumerate(zip(wholes, lefts, strict=True)):
        for metric, level in (("kl_icl", left), ("kl_icl_zero_shot", whole)):
            put(made, "sst2", "trained", seed, vector, metric, QUERIES, np.full(len(QUERIES), level))
    value = verdict(made)["sst2", "task-vector"].value
    assert value.mean == pytest.approx(1 - sum(lefts) / sum(wholes))
    assert value.each == pytest.approx((0.5,) * 5 + (-19.0,))


@pytest.mark.parametrize("shape", ["normal", "few high", "one in five far up"])
def test_no_learner_of_many_is_falsely_above_more_often_than_promised(shape: str) -> None:
    """None is above its random labels in more than half of the draws; `benchmarks.error_rates` has the whole table."""
    assert said(Made(shape=shape), "above the controls", 150) <= 0.06
    assert said(Made(shape=shape, learners=6, queries=15), "above the controls", 40) <= 0.1


@pytest.mark.parametrize("shape", ["normal", "few low"])
def test_a_learner_above_all_controls_is_seldom_called_not_above(shape: str) -> None:
    """By the margin in the median draw, of all seven controls."""
    assert said(Made(shape=shape, apart=0.02, alike=True), "not above", 150) <= 0.06


def test_random_labels_that_guess_are_no_way_to_be_called_above() -> None:
    assert said(Made(zero_shot=0.3, random_labels=0.5), "above the controls", 60) <= 0.1


def test_what_is_there_is_found() -> None:
    assert said(Made(apart=0.2), "above the controls", 40) >= 0.9
    assert rate_of_learning(5, 40, 0.18, 0.26, studies=60) >= 0.95
