"""Each of the four answers on evidence made for it, and the words that go with them."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dualscope.core.learning import ALIASES, Learning
from dualscope.core.query_columns import QueryColumn
from dualscope.core.words import CONTROL_ROLES
from dualscope.findings.evidence import Evidence, EvidenceKey, Setting
from dualscope.findings.rule import RULE
from dualscope.findings.verdict import Verdict, verdict

NULL = Learning("null-context")
QUERIES = [f"validation:{i}" for i in range(60)]


def who(name: str, **options: object) -> Learning:
    """A learner, or a learner under a control by its alias."""
    name, control = ALIASES.get(name, (name, None))
    return Learning.of(name, options, control)


def key(task: str, variant: str, learner: str | Learning, metric: str) -> EvidenceKey:
    return EvidenceKey(task, variant, who(learner) if isinstance(learner, str) else learner, metric)


def put(
    made: Evidence,
    task: str,
    variant: str,
    seed: int,
    learner: str | Learning,
    metric: str,
    queries: list[str],
    values: object,
    reference: Learning | None = None,
) -> None:
    """Values of a learner, which is under test if it is under no control and neither baseline nor reference."""
    where = key(task, variant, learner, metric)._replace(reference=reference)
    made.add(where, seed, queries, values)  # type: ignore[arg-type]
    known = {"zero-shot": "baseline", "in-context": "reference"}
    control = where.learning.control
    role = known.get(where.learning.name, "hypothesis") if control is None else CONTROL_ROLES[control]
    made.roles[where.learning] = role  # type: ignore[assignment]


def evidence(
    seeds: int = 6,
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

            def add(
                learner: str,
                metric: str,
                level: float | None,
                variant: str = "trained",
                reference: Learning | None = None,
            ) -> None:
                if level is not None:
                    noise = spread * (rng.standard_normal() / 3 + rng.standard_normal(len(QUERIES)))
                    put(made, task, variant, seed, learner, metric, QUERIES, level + noise, reference)  # noqa: B023

            add("gd", "sim_aou", gd)
            add("gd", "sim_aou", untrained, "untrained")
            add("random-update", "sim_aou", random_update)
            add("gd", "sim_aou_mismatched", mismatched)
            add("gd", "sim_aou_to_null", null, reference=NULL)
            chance = rng.random(len(QUERIES))
            for learner in ("zero-shot", "in-context", "gd"):
                right = chance < 0.5 + gains.get(learner, 0.0)
                put(made, task, "trained", seed, learner, "correct", QUERIES, right.astype(float))
    return made


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
    left, right = made.pair(
        key("sst2", "trained", "lcgd", "sim_aou"), key("sst2", "trained", "gd", "sim_aou")
    )
    assert beside.difference.mean == pytest.approx((left - right).mean())
    assert not beside.decides
    assert beside.p_holm >= beside.p
    assert "Below gd" in " ".join(found["sst2", "lcgd"].sentences)
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


def test_not_above() -> None:
    word, text = only(verdict(evidence(gd=0.3, mismatched=0.3, spread=0.01)))
    assert word == "not above"
    assert "mismatched" in text


@pytest.mark.parametrize("control", ["gd-random-labels", "gd-other-task"])
@pytest.mark.parametrize(("level", "answer"), [(0.1, "above the controls"), (0.4, "not above")])
def test_gd_that_was_taught_something_else_decides(control: str, level: float, answer: str) -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, control, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    word, said = only(verdict(made))
    assert word == answer
    assert control.removeprefix("gd-") in said


def test_controls_of_several_rates_decide_too() -> None:
    """A control is found at the learner's own rate; where there are several, names have the rate added."""
    cells = []
    for seed, rate in [(s, r) for s in range(6) for r in (0.1, 0.3)]:
        for learner, level in (("gd", 0.4), ("random-update", 0.5)):
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
    (made,) = Evidence.collect(cells).values()
    found = verdict(made)
    assert {answer.learner for answer in found.answers} == {"gd lr=0.1", "gd lr=0.3"}
    assert all([c.control for c in answer.comparisons] == ["random-update"] for answer in found.answers)


def test_a_learner_of_some_layers_has_controls_of_the_same_only() -> None:
    made = evidence()
    for seed in range(6):
        for learner, level in (
            (who("gd", layers=[2]), 0.3),
            (who("random-update", layers=[2]), 0.35),
            (who("gd", layers=[3]), 0.3),
        ):
            put(made, "sst2", "trained", seed, learner, "sim_aou", QUERIES, np.full(len(QUERIES), level))
    found = verdict(made)
    comparisons = found["sst2", "gd[layers=[2]]"].comparisons
    assert [(c.control, round(c.control_value.mean, 2)) for c in comparisons] == [("random-update", 0.35)]
    assert found["sst2", "gd[layers=[3]]"].comparisons == ()  # that of all layers is not one of its own


def test_a_control_of_too_few_seeds_decides_nothing() -> None:
    made = evidence(seeds=4)
    for variant, learner in (("untrained", "gd"), ("trained", "random-update")):
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
    assert "2 seed(s) cannot decide" in text


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


def test_seeds_that_were_not_enough_are_never_said_to_do() -> None:
    """Also where one task alone would have been settled, and Holm over the tasks asks for more."""
    found = verdict(
        evidence(
            tasks=("mr", "sst2", "subj", "trec"), gd=0.145, spread=0.14, untrained=0.1, random_update=0.1
        )
    )
    unclear = [
        c for a in found.answers for c in a.comparisons if c.outcome == "unclear" and c.difference.mean > 0
    ]
    assert any(c.difference.low > 0 for c in unclear)  # what one task alone would have shown
    assert all(c.seeds_needed is None or c.seeds_needed > c.difference.seeds for c in unclear)


def test_ceiling_and_data() -> None:
    made = evidence()
    for seed in range(6):
        put(made, "sst2", "trained", seed, "in-context-redraw", "sim_aou", QUERIES, np.full(60, 0.6))
        put(made, "sst2", "trained", seed, who("gd", layers=[2]), "sim_aou", QUERIES, np.full(60, 0.3))
    found = verdict(made)
    answer, of_one_layer = found.answers
    assert of_one_layer.share_of_ceiling is None  # the ceiling is a mean over all layers
    assert answer.share_of_ceiling is not None
    assert answer.share_of_ceiling.mean == pytest.approx(0.5, abs=0.05)
    assert json.loads(json.dumps(found.to_dict()))["answers"][0]["answer"] == "above the controls"
    assert found["sst2", "gd"] is answer


def table(levels: Mapping[str | QueryColumn, float], right: float) -> pa.Table:
    n = len(QUERIES)
    labels = np.zeros(n, int)
    prediction = (np.arange(n) >= right * n).astype(int)
    columns = {
        "query": QUERIES,
        "label": labels,
        "prediction": prediction,
        "label_logprobs": [[0.0, 1.0]] * n,
    }
    found = pa.table(columns)
    for column, level in levels.items():
        described = column if isinstance(column, QueryColumn) else QueryColumn(column)
        found = found.append_column(described.field(pa.float64()), pa.array(np.full(n, level)))
    return found


def cells() -> list[tuple[dict[str, Any], pa.Table]]:
    found: list[tuple[dict[str, Any], pa.Table]] = []
    for seed in range(6):
        for variant in ("trained", "untrained"):
            base: dict[str, Any] = {
                "model": "tiny",
                "variant": variant,
                "task": "sst2",
                "seed": seed,
                "demo_labels": "gold",
            }
            base |= {"corrupt": "both", "lr": None, "options": "{}", "control": None, "role": "hypothesis"}
            high = 0.3 if variant == "trained" else 0.1
            gd: dict[str | QueryColumn, float] = {"sim_aou": high, "sim_aou_mismatched": 0.1, "sim_am": 2.0}
            gd |= {QueryColumn("sim_aou_to_null", NULL): 0.1, QueryColumn("sim_aou", layers=True): 1.0}
            found += [
                (base | {"learner": "zero-shot", "role": "baseline", "shots": 0}, table({}, 0.5)),
                (base | {"learner": "in-context", "role": "reference", "shots": 16}, table({}, 0.9)),
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
    labels = [learning.label for learning in sixteen.learnings("sst2")]
    assert labels == ["gd", "in-context", "lcgd[readout=attention]", "zero-shot"]
    assert [learning.rate for learning in four.learnings("sst2")] == [0.1, 0.3, None]
    gd = Learning("gd", rate=0.3)
    assert sixteen.references("sst2", gd, "sim_aou_to_null") == [NULL]
    assert {k.metric for k in sixteen.values if k.learning == gd and k.variant == "trained"} == {
        "correct", "sim_aou", "sim_aou_mismatched", "sim_aou_to_null",
    }  # fmt: skip
    (correct,) = sixteen.pair(key("sst2", "trained", "in-context", "correct"))
    assert correct.shape == (6, 60)
    assert correct.mean() == pytest.approx(0.9)
    (likeness,) = sixteen.pair(key("sst2", "trained", gd, "sim_aou"))
    np.testing.assert_allclose(likeness, 0.3)  # the values of single layers are not among them
    assert verdict(sixteen)["sst2", "gd"].answer == "above the controls"
    assert verdict(four)["sst2", "lcgd lr=0.1"].answer == "not testable"


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
    levels: dict[str, dict[str | QueryColumn, float]] = {
        "trained": {"sim_aou": 0.3, "sim_aou_mismatched": 0.1},
        "untrained": {"sim_aou": 0.1},
    }
    found = [
        (
            columns
            | ({} if columns["learner"] == "zero-shot" else {"demo_labels": "flipped", "corrupt": corrupt}),
            table(levels[columns["variant"]], right[columns["learner"]]),
        )
        for columns, _ in cells()
        if columns["learner"] in right
    ]
    (evidence,) = Evidence.collect(found).values()
    assert verdict(evidence)["sst2", "gd"].answer == answer


def test_pairs_align_by_seed_and_query() -> None:
    made = Evidence()
    put(made, "t", "trained", 0, "gd", "m", ["a", "b", "c"], [1.0, 2.0, 3.0])
    put(made, "t", "trained", 1, "gd", "m", ["a", "b", "c"], [4.0, 5.0, 6.0])
    put(made, "t", "trained", 1, "icl", "m", ["c", "a"], [None, 40.0])
    put(made, "t", "trained", 1, "icl", "m", ["a"], [60.0])  # another order of the same demonstrations
    left, right = made.pair(key("t", "trained", "gd", "m"), key("t", "trained", "icl", "m"))
    np.testing.assert_array_equal(left, [[4.0, 6.0]])
    np.testing.assert_array_equal(right, [[50.0, np.nan]])


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


def test_zero_shot_counts_only_where_the_same_queries_are_asked() -> None:
    asked = [columns | {"queries_from": "mr"} for columns, _ in cells()]
    both = [*cells(), *((columns, table({}, 0.0)) for columns in asked)]
    found = Evidence.collect(both)
    assert Setting("tiny", 16, queries_from="mr") in found
    (right,) = found[Setting("tiny", 16)].pair(key("sst2", "trained", "zero-shot", "correct"))
    assert right.mean() == pytest.approx(0.5)
