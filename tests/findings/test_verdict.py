"""Each of the four answers on evidence made for it, and the words that go with them."""

import json

import numpy as np
import pytest

from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import RULE
from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import Verdict, verdict
from tests.findings.made import QUERIES, collected, evidence, key, put, table, who


def only(found: Verdict) -> tuple[str, str]:
    (answer,) = found.answers
    assert (answer.task, answer.learner) == ("sst2", "gd")  # controls are not under test
    return answer.answer, " ".join(answer.sentences)


def test_other_learners_stand_beside_plain_gd_which_does_not_decide() -> None:
    made = evidence(tasks=("sst2", "mr"))
    rng = np.random.default_rng(1)
    for task in made.tasks:
        for seed in range(6):
            put(made, task, "trained", seed, "lcgd", "sim_aou", QUERIES, 0.2 + 0.01 * rng.standard_normal(60))
    found = verdict(made)
    beside = {c.control: c for c in found["sst2", "lcgd"].comparisons}["gd"]
    left, right = made.pair(key("sst2", "trained", "lcgd", "sim_aou"), key("sst2", "trained", "gd", "sim_aou"))
    assert beside.difference.mean == pytest.approx((left - right).mean())
    assert not beside.decides
    assert beside.p_corrected >= beside.p
    assert "Lower than gd" in " ".join(found["sst2", "lcgd"].sentences)
    assert "gd" not in [c.control for c in found["sst2", "gd"].comparisons]


def test_above_the_controls() -> None:
    found = verdict(evidence())
    word, text = only(found)
    assert word == "above the controls"
    assert "Above untrained by 0.2" in text
    assert "6 seeds x 60 queries" in text
    names = [c.control for c in found.answers[0].comparisons]
    assert names == ["untrained", "random-update", "mismatched", "likeness to null-context"]
    assert found.sentences == ("gd: above the controls on sst2.",)
    assert found.rule == RULE


def test_intervals_end_where_likenesses_and_gains_do() -> None:
    """Three seeds reach far: cut at 1, and at a gain of 1; what is above 0 stays so."""
    found = verdict(evidence(seeds=3, gd=0.97, mismatched=0.96, spread=0.6, gains={"in-context": 0.5, "gd": 0.5}))
    (answer,) = found.answers
    assert answer.value.high == 1.0
    assert {c.control: c.control_value.high for c in answer.comparisons}["mismatched"] == 1.0
    assert answer.icl_gain is not None
    assert 0 < answer.icl_gain.low < answer.icl_gain.high <= 1.0


def test_not_above() -> None:
    word, text = only(verdict(evidence(gd=0.3, mismatched=0.3, spread=0.01)))
    assert word == "not above"
    assert "mismatched" in text


@pytest.mark.parametrize("control", ["gd/random-labels", "gd/other-task"])
@pytest.mark.parametrize(("level", "answer"), [(0.1, "above the controls"), (0.4, "not above")])
def test_gd_that_was_taught_something_else_decides(control: str, level: float, answer: str) -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, control, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    word, said = only(verdict(made))
    assert word == answer
    assert control.removeprefix("gd/") in said


def test_controls_of_several_rates_decide_too() -> None:
    """A control is found at the learner's own rate; where there are several, names have the rate added."""
    cells = []
    for seed, rate in [(s, r) for s in range(6) for r in (0.1, 0.3)]:
        for learner, level in (("gd", 0.4), ("gd/random-update", 0.5)):
            columns = {
                "model": "m",
                "variant": "trained",
                "task": "sst2",
                "seed": seed,
                "learner": "gd",
                "control": who(learner).control,
                "role": "hypothesis" if learner == "gd" else "null",
                "lr": rate,
                "options": "{}",
            }
            cells.append((columns | {"shots": 4}, table({"sim_aou": level}, 1.0)))
    (made,) = collected(cells).values()
    found = verdict(made)
    assert {answer.learner for answer in found.answers} == {"gd lr=0.1", "gd lr=0.3"}
    assert all([c.control for c in answer.comparisons] == ["random-update"] for answer in found.answers)


def test_a_learner_of_some_layers_has_controls_of_the_same_only() -> None:
    made = evidence()
    for seed in range(6):
        for learner, level in (
            (who("gd", layers=[2]), 0.3),
            (who("gd/random-update", layers=[2]), 0.35),
            (who("gd", layers=[3]), 0.3),
        ):
            put(made, "sst2", "trained", seed, learner, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    found = verdict(made)
    comparisons = found["sst2", "gd[layers=[2]]"].comparisons
    assert [(c.control, round(c.control_value.mean, 2)) for c in comparisons] == [("random-update", 0.35)]
    assert found["sst2", "gd[layers=[3]]"].comparisons == ()  # that of all layers is not one of its own


def test_a_control_of_too_few_seeds_decides_nothing() -> None:
    made = evidence(seeds=4)
    for variant, learner in (("untrained", "gd"), ("trained", "gd/random-update")):
        where = key("sst2", variant, learner, "sim_aou")
        made.values[where] = {0: made.values[where][0]}
    word, _ = only(verdict(made))
    assert word == "inconclusive"


def test_not_testable() -> None:
    for gains in ({"in-context": 0.0, "gd": 0.2}, {"in-context": 0.3, "gd": -0.1}, {"in-context": 0.3}):
        word, text = only(verdict(evidence(gains=gains)))
        assert word == "not testable"
        assert "no learning to compare" in text


def test_inconclusive() -> None:
    word, text = only(verdict(evidence(gd=0.16, spread=0.3)))
    assert word == "inconclusive"
    assert "Not clearly above" in text
    assert "seeds would settle it" in text
    few = verdict(evidence(seeds=2, gains={"in-context": 0.5, "gd": 0.5}))
    word, text = only(few)
    assert word in ("inconclusive", "not testable")
    assert "2 seed(s) cannot decide; the rule asks for 5" in text


def test_missing_evidence_is_said() -> None:
    word, text = only(verdict(evidence(untrained=None)))
    assert word == "inconclusive"
    assert "Evidence is missing: untrained not measured; add --variant trained --variant untrained." in text
    bare = evidence(random_update=None, mismatched=None, null=None)
    for seed in range(6):  # a random direction is shown, and decides nothing
        put(bare, "sst2", "trained", seed, "gd", "sim_aou_random", QUERIES, np.zeros(len(QUERIES)))
    word, text = only(verdict(bare))
    assert word == "inconclusive"
    assert "null controls not measured" in text
    assert verdict(Evidence()).sentences == (
        "No learner was compared with in-context learning, so there is no answer.",
    )


def test_untrained_beats_trained_is_said_in_words() -> None:
    found = verdict(evidence(untrained=0.5))
    word, text = only(found)
    assert word == "not above"
    assert "Untrained beats trained: the untrained model scores 0." in text
    assert "Untrained beats trained for gd on sst2." in found.sentences


def test_corrected_over_tasks() -> None:
    """A difference that one task alone would show is not enough among three."""
    single = verdict(evidence(gd=0.145, spread=0.14, untrained=0.1, random_update=0.1))
    p = {c.control: (c.p, c.p_corrected) for c in single.answers[0].comparisons}
    assert all(a == b for a, b in p.values())
    many = verdict(evidence(tasks=("sst2", "mr", "subj"), gd=0.145, spread=0.14, untrained=0.1, random_update=0.1))
    for control in ("untrained", "mismatched"):
        raw = [next(c for c in a.comparisons if c.control == control) for a in many.answers]
        smallest = min(raw, key=lambda c: c.p)
        assert smallest.p_corrected == pytest.approx(min(1.0, 3 * smallest.p))
        assert all(c.p_corrected >= c.p for c in raw)


def test_corrected_over_learners_and_rates_but_not_over_what_cannot_be_tested() -> None:
    made, rng = evidence(gd=0.145, spread=0.14, untrained=0.1, random_update=0.1), np.random.default_rng(8)
    others = [LearnerSpec("lcgd", lr=0.1), LearnerSpec("lcgd", lr=0.3), LearnerSpec("probe"), LearnerSpec("deaf")]
    for seed in range(6):
        for learning in others:
            put(made, "sst2", "trained", seed, learning, "sim_aou", QUERIES, 0.2 + 0.1 * rng.standard_normal(60))
            right = rng.random(60) < (0.5 if learning.name == "deaf" else 0.9)
            put(made, "sst2", "trained", seed, learning, "correct", QUERIES, right.astype(float))
    found = verdict(made)
    assert [a.learner for a in found.answers if not a.is_testable] == ["deaf"]
    for answer in found.answers:
        for c in answer.comparisons:
            assert c.p_corrected == pytest.approx(min(1.0, 4 * c.p))


def test_not_above_is_corrected_for_the_number_of_controls() -> None:
    (answer,) = verdict(evidence(gd=0.1, mismatched=0.1, spread=0.05)).answers
    left, right = (key("sst2", "trained", "gd", name) for name in ("sim_aou", "sim_aou_mismatched"))
    apart = evidence(gd=0.1, mismatched=0.1, spread=0.05).apart(left, right)
    (compared,) = [c for c in answer.comparisons if c.control == "mismatched"]
    assert sum(c.decides for c in answer.comparisons) == 4
    assert compared.p_below == pytest.approx(min(1.0, 4 * apart.p_of(0.02)))


def test_missing_values_are_left_out_of_paired_differences() -> None:
    """Queries that a control has no value of are no queries where it has 0."""
    made, full = evidence(spread=0.01), evidence(spread=0.01)
    where = key("sst2", "untrained", "gd", "sim_aou")
    for seed, parts in made.values[where].items():
        made.values[where][seed] = [
            (queries, np.where(np.arange(60) < 40, values, np.nan)) for queries, values in parts
        ]
    own = key("sst2", "trained", "gd", "sim_aou")
    found, whole = made.apart(own, where), full.apart(own, where)
    assert found.queries == 40
    assert found.mean == pytest.approx(whole.mean, abs=0.01)
    for seed in (0, 1):  # a seed without any value is no seed
        made.values[where][seed] = [(queries, values * np.nan) for queries, values in made.values[where][seed]]
    assert made.apart(own, where).seeds == 4
    assert made.apart(own, where).mean == pytest.approx(whole.mean, abs=0.01)


def test_seeds_that_were_not_enough_are_never_said_to_do() -> None:
    """Also where one task alone would have been settled, and the number of tasks asks for more."""
    found = verdict(
        evidence(tasks=("mr", "sst2", "subj", "trec"), gd=0.145, spread=0.14, untrained=0.1, random_update=0.1)
    )
    unclear = [c for a in found.answers for c in a.comparisons if c.outcome == "unclear" and c.difference.mean > 0]
    assert any(c.difference.low > 0 for c in unclear)  # what one task alone would have shown
    assert all(c.seeds_needed is None or c.seeds_needed > c.difference.seeds for c in unclear)


def test_ceiling_and_data() -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, "in-context/redraw", "sim_aou", QUERIES, np.full(60, 0.6))
        put(made, "sst2", "trained", seed, who("gd", layers=[2]), "sim_aou", QUERIES, np.full(60, 0.3))
    found = verdict(made)
    answer, of_one_layer = found.answers
    assert of_one_layer.share_of_ceiling is None  # the ceiling is a mean over all layers
    assert answer.share_of_ceiling is not None
    assert answer.share_of_ceiling.mean == pytest.approx(0.5, abs=0.05)
    assert json.loads(json.dumps(found.to_dict()))["answers"][0]["answer"] == "above the controls"
    assert found["sst2", "gd"] is answer
