"""What the verdict is judged on: collected from cells, by setting, and paired by seed and query."""

import numpy as np
import pytest

from dualscope.core.rows import QueryColumn
from dualscope.core.spec import LearnerSpec
from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import verdict
from tests.findings.made import NULL, cells, collected, key, put, setting, table


def test_evidence_from_cells() -> None:
    found = collected(cells())
    assert set(found) == {setting("tiny", 16), setting("tiny", 4)}
    sixteen, four = found[setting("tiny", 16)], found[setting("tiny", 4)]
    labels = [learning.label for learning in sixteen.learnings("sst2")]
    assert labels == ["gd", "in-context", "lcgd[readout=attention]", "zero-shot"]
    assert [learning.lr for learning in four.learnings("sst2")] == [0.1, 0.3, None]
    gd = LearnerSpec("gd", lr=0.3)
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
def test_flipped_labels_are_learned_where_they_are_followed(corrupt: str, icl: float, gd: float, answer: str) -> None:
    right = {"zero-shot": 0.5, "in-context": icl, "gd": gd}
    levels: dict[str, dict[str | QueryColumn, float]] = {
        "trained": {"sim_aou": 0.3, "sim_aou_mismatched": 0.1},
        "untrained": {"sim_aou": 0.1},
    }
    found = [
        (
            columns | ({} if columns["learner"] == "zero-shot" else {"demo_labels": "flipped", "corrupt": corrupt}),
            table(levels[columns["variant"]], right[columns["learner"]]),
        )
        for columns, _ in cells()
        if columns["learner"] in right
    ]
    (evidence,) = collected(found).values()
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


def test_zero_shot_counts_only_where_the_same_queries_are_asked() -> None:
    asked = [columns | {"queries_from": "mr"} for columns, _ in cells()]
    both = [*cells(), *((columns, table({}, 0.0)) for columns in asked)]
    found = collected(both)
    assert setting("tiny", 16, queries_from="mr") in found
    (right,) = found[setting("tiny", 16)].pair(key("sst2", "trained", "zero-shot", "correct"))
    assert right.mean() == pytest.approx(0.5)
