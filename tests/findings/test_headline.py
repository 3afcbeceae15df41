"""One sentence for every answer, and it names what decided."""

from typing import Any, get_args

import numpy as np
import pytest

from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import Word
from dualscope.findings.evidence import Evidence
from dualscope.findings.headline import next_steps
from dualscope.findings.response_decision import ResponseWord
from dualscope.findings.verdict import Verdict, verdict
from tests.findings.made import QUERIES, evidence, put


def said(**levels: float) -> str:
    return plain(verdict(evidence(**levels, spread=1e-3)))  # type: ignore[arg-type]


def plain(found: Verdict) -> str:
    """The headline's sentence, without what it is about."""
    assert found.headline.startswith("Likeness of the whole change. ")
    return found.headline.removeprefix("Likeness of the whole change. ")


def test_no_names_the_control_that_is_more_alike() -> None:
    made = evidence(gd=0.3, spread=1e-3)
    rng = np.random.default_rng(3)
    for seed in range(6):
        put(
            made,
            "sst2",
            "trained",
            seed,
            LearnerSpec("zero-shot-offset"),
            "sim_aou",
            QUERIES,
            0.54 + 0.01 * rng.standard_normal(60),
        )
    made.roles[LearnerSpec("zero-shot-offset")] = "null"
    found = verdict(made)
    assert plain(found) == (
        "Not above its controls: moving the query to its position in context, with nothing to learn from, is more like "
        "in-context learning (.54) than gradient descent is (.30)."
    )
    (answer,) = found.answers
    assert answer.decided_by is not None
    assert answer.decided_by.kind == "position"
    assert found.to_dict()["answers"][0]["decided_by"] == "position"


def test_no_by_a_likeness_to_a_null_context_says_whose_likeness() -> None:
    text = said(null=0.6)
    assert text.startswith(
        "Not above its controls: gradient descent is more like a context that teaches nothing (.60) than like in-"
    )


def test_no_by_untrained_weights() -> None:
    assert (
        said(untrained=0.6)
        == "Not above its controls: the same on untrained weights is more like in-context learning (.60) than gradient "
        "descent is (.30)."
    )


def test_above_says_what_comes_nearest() -> None:
    text = said(mismatched=0.2)
    assert text.startswith("Above every control that was measured: the likeness of gradient descent is .30;")
    assert "the change that belongs to another query (.20)" in text


def test_missing_evidence_names_the_flag() -> None:
    text = plain(verdict(evidence(untrained=None, spread=1e-3)))
    assert text.startswith("Undecided: gradient descent (.30) was not compared with untrained (add --variant")


def test_what_seeds_cannot_tell_apart_is_undecided() -> None:
    text = plain(verdict(evidence(gd=0.3, mismatched=0.27, spread=0.3)))
    assert text.startswith("Undecided: on sst2, 6 seeds cannot tell gradient descent")
    assert "the change that belongs to another query" in text


def test_nothing_learned_is_not_testable() -> None:
    found = verdict(evidence(gains={"in-context": 0.0, "gd": 0.2}))
    assert plain(found) == (
        "Not testable: in-context learning does not clearly beat zero-shot and chance, so there is no learning to "
        "compare."
    )


def test_every_learner_has_a_sentence_and_plain_descent_leads() -> None:
    made = evidence(gd=0.3)
    for seed in range(6):
        put(made, "sst2", "trained", seed, LearnerSpec("lcgd"), "sim_aou", QUERIES, np.full(60, 0.2))
        put(made, "sst2", "trained", seed, LearnerSpec.of("gd", {"epochs": 3}), "sim_aou", QUERIES, np.full(60, 0.2))
    found = verdict(made)
    assert [name for name, _ in found.said] == ["gd", "gd[epochs=3]", "lcgd"]
    assert plain(found) == dict(found.said)["gd"]


def null(made: Evidence, task: str, name: str, level: float) -> None:
    """A null learner of a task, of this likeness."""
    rng = np.random.default_rng(5)
    for seed in range(6):
        values = level + 0.001 * rng.standard_normal(len(QUERIES))
        put(made, task, "trained", seed, LearnerSpec(name), "sim_aou", QUERIES, values)
    made.roles[LearnerSpec(name)] = "null"


def test_the_control_that_decided_most_often_is_named() -> None:
    made = evidence(tasks=("mr", "sst2", "subj"), gd=0.3, spread=1e-3)
    for task, name in (("mr", "dilution"), ("sst2", "zero-shot-offset"), ("subj", "zero-shot-offset")):
        null(made, task, name, 0.5)
    assert plain(verdict(made)).startswith("Not above its controls: moving the query to its position in context")


def test_above_on_one_task_and_not_on_another_depends_on_the_task() -> None:
    made = evidence(tasks=("mr", "sst2"), gd=0.3, spread=1e-3)
    null(made, "sst2", "dilution", 0.5)
    assert plain(verdict(made)) == (
        "It depends on the task: above every control on mr; not on sst2, where diluting attention as the context does, "
        "with nothing to learn from, is more like in-context learning (.50) than gradient descent is (.30)."
    )


def test_what_comes_nearest_is_the_nearest_of_all_tasks() -> None:
    made = evidence(tasks=("mr", "sst2"), gd=0.3, spread=1e-3)
    null(made, "mr", "dilution", 0.15)
    null(made, "sst2", "dilution", 0.25)
    text = plain(verdict(made))
    assert text.startswith("Above every control that was measured: the likeness of gradient descent is .30;")
    assert text.endswith("diluting attention as the context does, with nothing to learn from (.25).")


def test_plain_descent_leads_also_where_it_is_missing_on_the_first_task() -> None:
    made = evidence(tasks=("sst2",), gd=0.3, spread=1e-3)
    for seed in range(6):
        other = LearnerSpec.of("gd", {"epochs": 3})
        put(made, "mr", "trained", seed, other, "sim_aou", QUERIES, np.full(len(QUERIES), 0.2))
    found = verdict(made)
    assert found.answers[0].learner == "gd[epochs=3]"
    assert plain(found) == dict(found.said)["gd"]


def test_as_many_seeds_as_there_are_would_not_do() -> None:
    """Two seeds never decide, however clear they are."""
    text = plain(verdict(evidence(seeds=2, gains={"in-context": 0.45, "gd": 0.45}, spread=1e-4)))
    assert text.startswith("Undecided: on sst2, 2 seeds cannot tell gradient descent")
    assert text.endswith("about 5 would.")  # the fewest that decide at all


def test_a_control_with_as_much_is_said_to_have_as_much_and_not_more() -> None:
    """Where the learner has a little more, by less than the margin, the control is as like, not more."""
    text = said(gd=0.305, mismatched=0.3)
    assert "is as like in-context learning (.30) as gradient descent is (.3" in text
    assert "is more like in-context learning (.33) than gradient descent is (.30)" in said(gd=0.3, mismatched=0.33)


def test_no_cosine_is_said_to_explain() -> None:
    for levels in ({"untrained": 0.6}, {"mismatched": 0.3}, {"null": 0.6}, {"mismatched": 0.2}):
        found = verdict(evidence(**levels, spread=1e-3))  # type: ignore[arg-type]
        assert "explain" not in " ".join([found.headline, *found.sentences, *found.answers[0].sentences])


SILENT = {"labels ignored", "labels copied", "cannot tell", "inconclusive"}


def _answer(word: str, needed: int | None = None, task: str = "sst2") -> dict[str, Any]:
    likeness = {"missing": [], "decided_by": "dilution", "comparisons": [{"control": "dilution", "seeds_needed": 7}]}
    return {"task": task, "learner": "gd", "answer": word, "seeds_needed": needed, **likeness}


@pytest.mark.parametrize("word", get_args(ResponseWord))
@pytest.mark.parametrize("needed", [None, 9])
def test_a_response(word: str, needed: int | None) -> None:
    steps = next_steps([{"variant": "trained", "answers": [_answer(word, needed)]}], [])
    assert bool(steps) == (word in SILENT)
    if word == "cannot tell":
        assert steps[0].options == ({"--seeds": ["9"]} if needed else {"--demo-labels": ["abstract"]})


@pytest.mark.parametrize("word", get_args(Word))
def test_a_likeness(word: str) -> None:
    steps = next_steps([], [{"answers": [_answer(word)]}])
    assert [step.options for step in steps] == ([{"--seeds": ["7"]}] if word == "inconclusive" else [])


def test_descent_that_hardly_learns_is_tried_at_its_best() -> None:
    plain = {**_answer("cannot tell"), "family": "gradient"}
    best = {**plain, "learner": "gd-tuned"}
    (step,) = next_steps([{"variant": "trained", "answers": [plain, {**plain, "learner": "lcgd"}]}], [])
    assert step.options == {"--learner": ["gd", "lcgd", "gd-tuned"]}
    (step,) = next_steps([{"variant": "trained", "answers": [plain, best]}], [])
    assert step.options == {"--demo-labels": ["abstract"]}, "that was tried already"


def test_one_command_serves_all_that_need_seeds() -> None:
    answers = [_answer("cannot tell", 8), _answer("cannot tell", 12, "mr"), _answer("cannot tell", 9, "rte")]
    (step,) = next_steps([{"variant": "trained", "answers": answers}], [])
    assert step.options == {"--seeds": ["12"]}
    assert step.tasks == ["sst2", "mr", "rte"]
