"""Each of the four answers on evidence made for it, and the words that go with them."""

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from dualscope.findings.evidence import Evidence, Setting
from dualscope.findings.verdict import RULE, Verdict, verdict

QUERIES = [f"validation:{i}" for i in range(60)]
NULL = "sim_aou_to_null[null-context]"


def evidence(
    seeds: int = 3,
    tasks: tuple[str, ...] = ("sst2",),
    gd: float = 0.3,
    untrained: float | None = 0.05,
    random_update: float | None = 0.02,
    mismatched: float | None = 0.1,
    null: float | None = 0.1,
    gains: Mapping[str, float] = {"in-context": 0.3, "gd": 0.2},
    spread: float = 0.05,
) -> Evidence:
    """A study in which every similarity is a level with noise by seed and by query."""
    made = Evidence()
    rng = np.random.default_rng(0)
    for task in tasks:
        for seed in range(seeds):

            def add(learner: str, metric: str, level: float | None, variant: str = "trained") -> None:
                if level is not None:
                    noise = spread * (rng.standard_normal() / 3 + rng.standard_normal(len(QUERIES)))
                    made.add(task, variant, seed, learner, metric, QUERIES, level + noise)  # noqa: B023

            add("gd", "sim_aou", gd)
            add("gd", "sim_aou", untrained, "untrained")
            add("random-update", "sim_aou", random_update)
            add("gd", "sim_aou_mismatched", mismatched)
            add("gd", NULL, null)
            chance = rng.random(len(QUERIES))
            for learner in ("zero-shot", "in-context", "gd"):
                right = chance < 0.5 + gains.get(learner, 0.0)
                made.add(task, "trained", seed, learner, "correct", QUERIES, right.astype(float))
    return made


def only(found: Verdict) -> tuple[str, str]:
    (answer,) = found.answers
    assert (answer.task, answer.learner) == ("sst2", "gd")  # controls are not under test
    return answer.answer, " ".join(answer.sentences)


def test_other_learners_stand_beside_plain_gd_which_does_not_decide() -> None:
    made = evidence(tasks=("sst2", "mr"))
    rng = np.random.default_rng(1)
    for task in made.tasks:
        for seed in range(3):
            made.add(task, "trained", seed, "lcgd", "sim_aou", QUERIES, 0.2 + 0.01 * rng.standard_normal(60))
    found = verdict(made)
    beside = {c.control: c for c in found["sst2", "lcgd"].comparisons}["gd"]
    left, right = made.pair(("sst2", "trained", "lcgd", "sim_aou"), ("sst2", "trained", "gd", "sim_aou"))
    assert beside.difference.mean == pytest.approx((left - right).mean())
    assert not beside.decides
    assert beside.p_holm >= beside.p
    assert beside.sign_flip.smallest == 0.25
    assert "Below gd" in " ".join(found["sst2", "lcgd"].sentences)
    assert "gd" not in [c.control for c in found["sst2", "gd"].comparisons]


def test_above_the_controls() -> None:
    found = verdict(evidence())
    word, text = only(found)
    assert word == "above the controls"
    assert "Above untrained by 0.2" in text
    assert "3 seeds x 60 queries" in text
    assert "3 seeds cannot go below 0.25" in text
    names = [c.control for c in found.answers[0].comparisons]
    assert names == ["untrained", "random-update", "mismatched", "null-context"]
    assert found.sentences == ("gd: above the controls on sst2.",)
    assert found.rule == RULE


def test_not_above() -> None:
    word, text = only(verdict(evidence(gd=0.3, mismatched=0.3, spread=0.01)))
    assert word == "not above"
    assert "mismatched" in text


@pytest.mark.parametrize("control", ["gd-random-labels", "gd-other-task"])
@pytest.mark.parametrize(("level", "answer"), [(0.1, "above the controls"), (0.4, "not above")])
def test_gd_that_was_taught_something_else_decides(control: str, level: float, answer: str) -> None:
    made = evidence()
    for seed in range(3):
        made.add("sst2", "trained", seed, control, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    word, said = only(verdict(made))
    assert word == answer
    assert control in said


def test_controls_of_several_rates_decide_too() -> None:
    """Where there are several rates, names have the rate added: a control is found at the learner's own."""
    cells = []
    for seed, rate in [(s, r) for s in range(3) for r in (0.1, 0.3)]:
        for learner, level in (("gd", 0.4), ("random-update", 0.5)):
            columns = {
                "model": "m",
                "variant": "trained",
                "task": "sst2",
                "seed": seed,
                "learner": learner,
                "lr": rate,
            }
            table = [{"query": q, "label": 1, "prediction": 1, "sim_aou": level} for q in QUERIES]
            cells.append((columns | {"shots": 4}, table))
    (made,) = Evidence.collect(cells).values()
    found = verdict(made)
    assert {answer.learner for answer in found.answers} == {"gd lr=0.1", "gd lr=0.3"}
    assert all([c.control for c in answer.comparisons] == ["random-update"] for answer in found.answers)


def test_a_learner_of_some_layers_has_controls_of_the_same_only() -> None:
    made = evidence()
    for seed in range(3):
        for learner, level in (
            ("gd[layers=[2]]", 0.3),
            ("random-update[layers=[2]]", 0.35),
            ("gd[layers=[3]]", 0.3),
        ):
            made.add("sst2", "trained", seed, learner, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    found = verdict(made)
    comparisons = found["sst2", "gd[layers=[2]]"].comparisons
    assert [(c.control, round(c.control_value.mean, 2)) for c in comparisons] == [("random-update", 0.35)]
    assert found["sst2", "gd[layers=[3]]"].comparisons == ()  # that of all layers is not one of its own


def test_a_control_of_too_few_seeds_decides_nothing() -> None:
    made = evidence(seeds=4)
    for key in [("sst2", "untrained", "gd", "sim_aou"), ("sst2", "trained", "random-update", "sim_aou")]:
        made.values[key] = {0: made.values[key][0]}
    word, _ = only(verdict(made))
    assert word == "inconclusive"


def test_not_testable() -> None:
    for gains in ({"in-context": 0.0, "gd": 0.2}, {"in-context": 0.3, "gd": -0.1}, {"in-context": 0.3}):
        word, text = only(verdict(evidence(gains=gains)))
        assert word == "not testable"
        assert "no learning to compare" in text


def test_inconclusive() -> None:
    word, text = only(verdict(evidence(gd=0.12, spread=0.3)))
    assert word == "inconclusive"
    assert "Not clearly above" in text
    word, text = only(verdict(evidence(seeds=2)))
    assert word == "inconclusive"
    assert "2 seed(s) cannot decide" in text


def test_missing_evidence_is_said() -> None:
    word, text = only(verdict(evidence(untrained=None)))
    assert word == "inconclusive"
    assert "Evidence is missing: untrained not measured." in text
    word, text = only(verdict(evidence(random_update=None, mismatched=None, null=None)))
    assert word == "inconclusive"
    assert "null controls not measured" in text
    assert verdict(Evidence()).sentences == (
        "No gradient learner was compared with in-context learning, so there is no answer.",
    )


def test_untrained_beats_trained_is_said_in_words() -> None:
    found = verdict(evidence(untrained=0.5))
    word, text = only(found)
    assert word == "not above"
    assert "Untrained beats trained: the untrained model scores 0." in text
    assert "Untrained beats trained for gd on sst2." in found.sentences


def test_holm_over_tasks() -> None:
    """A difference that one task alone would show is not enough among five."""
    single = verdict(evidence(gd=0.145, spread=0.14, untrained=0.1, random_update=0.1))
    p = {c.control: (c.p, c.p_holm) for c in single.answers[0].comparisons}
    assert all(a == b for a, b in p.values())
    many = verdict(
        evidence(tasks=("sst2", "mr", "subj"), gd=0.145, spread=0.14, untrained=0.1, random_update=0.1)
    )
    for control in ("untrained", "mismatched"):
        raw = [next(c for c in a.comparisons if c.control == control) for a in many.answers]
        smallest = min(raw, key=lambda c: c.p)
        assert smallest.p_holm == pytest.approx(min(1.0, 3 * smallest.p))
        assert all(c.p_holm >= c.p for c in raw)


def test_ceiling_and_data() -> None:
    made = evidence()
    for seed in range(3):
        made.add("sst2", "trained", seed, "in-context-redraw", "sim_aou", QUERIES, np.full(60, 0.6))
    found = verdict(made)
    (answer,) = found.answers
    assert answer.share_of_ceiling is not None
    assert answer.share_of_ceiling.mean == pytest.approx(0.5, abs=0.05)
    assert json.loads(json.dumps(found.to_dict()))["answers"][0]["answer"] == "above the controls"
    assert found["sst2", "gd"] is answer


def table(levels: Mapping[str, float], right: float) -> pa.Table:
    n = len(QUERIES)
    labels = np.zeros(n, int)
    prediction = (np.arange(n) >= right * n).astype(int)
    columns = {
        "query": QUERIES,
        "label": labels,
        "prediction": prediction,
        "label_logprobs": [[0.0, 1.0]] * n,
    }
    return pa.table(columns | {name: np.full(n, level) for name, level in levels.items()})


def cells() -> list[tuple[dict, pa.Table]]:
    found = []
    for seed in range(3):
        for variant in ("trained", "untrained"):
            base = {"model": "tiny", "variant": variant, "task": "sst2", "seed": seed, "demo_labels": "gold"}
            base |= {"corrupt": "both", "lr": None, "options": "{}"}
            high = 0.3 if variant == "trained" else 0.1
            gd = {"sim_aou": high, "sim_aou_mismatched": 0.1, NULL: 0.1, "sim_aou_layers": 1.0, "sim_am": 2.0}
            found += [
                (base | {"learner": "zero-shot", "shots": 0}, table({}, 0.5)),
                (base | {"learner": "in-context", "shots": 16}, table({}, 0.9)),
                (base | {"learner": "gd", "shots": 16, "lr": 0.3}, table(gd, 0.8)),
                (
                    base | {"learner": "lcgd", "shots": 16, "lr": 0.3, "options": '{"readout":"attention"}'},
                    table(gd, 0.8),
                ),
                (base | {"learner": "lcgd", "shots": 4, "lr": 0.3}, table(gd, 0.8)),
                (base | {"learner": "lcgd", "shots": 4, "lr": 0.1}, table(gd, 0.8)),
            ]
    return found


def test_evidence_from_cells() -> None:
    found = Evidence.collect(cells())
    assert set(found) == {Setting("tiny", 16), Setting("tiny", 4)}
    sixteen, four = found[Setting("tiny", 16)], found[Setting("tiny", 4)]
    assert sixteen.learners("sst2") == ["gd", "in-context", "lcgd[readout=attention]", "zero-shot"]
    assert four.learners("sst2") == ["lcgd lr=0.1", "lcgd lr=0.3", "zero-shot"]
    assert sixteen.metrics("sst2", "gd") == ["correct", "sim_aou", "sim_aou_mismatched", NULL]
    (correct,) = sixteen.pair(("sst2", "trained", "in-context", "correct"))
    assert correct.shape == (3, 60)
    assert correct.mean() == pytest.approx(0.9)
    assert verdict(sixteen)["sst2", "gd"].answer == "above the controls"
    assert verdict(four)["sst2", "lcgd lr=0.1"].answer == "not testable"
    as_lists = [(columns, queries.to_pylist()) for columns, queries in cells()]
    assert verdict(Evidence.collect(as_lists)[Setting("tiny", 16)]).sentences == verdict(sixteen).sentences


@pytest.mark.parametrize(
    ("corrupt", "icl", "gd", "answer"),
    [
        ("both", 0.1, 0.2, "above the controls"),  # each says the other label, as it was shown
        ("both", 0.9, 0.8, "not testable"),  # neither followed
        ("icl", 0.1, 0.8, "above the controls"),
        ("gd", 0.1, 0.8, "not testable"),
    ],
)
def test_flipped_labels_are_learned_where_they_are_followed(
    corrupt: str, icl: float, gd: float, answer: str
) -> None:
    right = {"zero-shot": 0.5, "in-context": icl, "gd": gd}
    levels = {"sim_aou": 0.3, "sim_aou_mismatched": 0.1}
    found = [
        (
            columns
            | ({} if columns["learner"] == "zero-shot" else {"demo_labels": "flipped", "corrupt": corrupt}),
            table(levels if columns["variant"] == "trained" else {"sim_aou": 0.1}, right[columns["learner"]]),
        )
        for columns, _ in cells()
        if columns["learner"] in right
    ]
    (evidence,) = Evidence.collect(found).values()
    assert verdict(evidence)["sst2", "gd"].answer == answer


def test_pairs_align_by_seed_and_query() -> None:
    made = Evidence()
    made.add("t", "trained", 0, "gd", "m", ["a", "b", "c"], [1.0, 2.0, 3.0])
    made.add("t", "trained", 1, "gd", "m", ["a", "b", "c"], [4.0, 5.0, 6.0])
    made.add("t", "trained", 1, "icl", "m", ["c", "a"], [None, 40.0])
    made.add("t", "trained", 1, "icl", "m", ["a"], [60.0])  # another order of the same demonstrations
    left, right = made.pair(("t", "trained", "gd", "m"), ("t", "trained", "icl", "m"))
    np.testing.assert_array_equal(left, [[4.0, 6.0]])
    np.testing.assert_array_equal(right, [[50.0, np.nan]])
