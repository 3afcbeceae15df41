"""From stored products to the answer: every word has an episode that gives it, and a run tells it to people."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.response_rates import DRAWS, alike, pair_of, unrelated_weights, world

from dualscope.core.response_products import ComparedPart, plant_name
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.words import LEVELS, Role
from dualscope.findings.answer import short
from dualscope.findings.response_words import headline
from dualscope.findings.responses import CellResponse, ResponseVerdict, TaskResponses, verdict_of
from dualscope.results.opened_run import Run, run_study
from tests.findings.made import setting

GD, PROBE = LearnerSpec("gd", lr=1.0), LearnerSpec("probe")
LEVEL_OF = tuple(level for level in LEVELS for _ in range(DRAWS // 2))


def part(true: float, rng: np.random.Generator, here: Any, reference: str = "in-context") -> ComparedPart:
    make = alike(true) if true else unrelated_weights
    return replace(pair_of(*make(here, rng)).parts[0], reference=reference)


def responses(
    gd: float = 0.95,
    plant: float | None = 0.99,
    again: float = 0.95,
    learned: float = 0.8,
    seeds: int = 5,
    own: float = 0.6,
    rival: float | None = None,
    who: LearnerSpec = PROBE,
) -> TaskResponses:
    """A task in which learners have these true correlations with in-context learning, before noise."""
    rng = np.random.default_rng(0)
    task = TaskResponses("sst2")

    def keep(learning: LearnerSpec, seed: int, role: Role, parts: list[ComparedPart], share: float) -> None:
        family = {"gd": "gradient", "lcgd": "gradient", "probe": "shallow"}.get(learning.name)
        shares = {("learned_share", None): share, ("learned_share", plant_name("gd")): share}
        cell = CellResponse(role, family, LEVEL_OF, parts, shares)  # type: ignore[arg-type]
        task.cells.setdefault(learning, {})[seed, 0, None] = cell

    for seed in range(seeds):
        here = world(rng)
        keep(IN_CONTEXT, seed, "reference", [], learned)
        keep(IN_CONTEXT.under("reorder"), seed, "ceiling", [part(again, rng, here)], learned)
        parts = [part(gd, rng, here)]
        if plant is not None:
            parts.append(part(plant, rng, here, plant_name("gd")))
        keep(GD, seed, "hypothesis", parts, own)
        if rival is not None:
            keep(who, seed, "hypothesis", [part(rival, rng, here)], own)
    return task


def judged(**how: Any) -> ResponseVerdict:
    return verdict_of(setting("model", 16), "trained", [responses(**how)], count=499)


@pytest.mark.parametrize(
    ("how", "word", "why"),
    [
        ({}, "alike", ""),
        ({"gd": 0.5}, "partly alike", ""),
        ({"gd": 0.0}, "different", ""),
        ({"learned": 0.04}, "labels ignored", "4.0% depends on the labels"),
        ({"learned": math.nan}, "cannot tell", "changes nothing"),
        ({"again": 0.0}, "labels copied", "in another order, the model responds differently"),
        ({"seeds": 2}, "cannot tell", "2 seeds cannot decide"),
        ({"own": 0.005}, "cannot tell", "0.5% depends on the labels"),
        ({"plant": 0.3}, "cannot tell", "not found again"),
    ],
)
def test_every_word(how: dict[str, Any], word: str, why: str) -> None:
    (answer,) = judged(**how).answers
    assert answer.answer == word, answer
    assert why in answer.why


def test_the_target_is_the_plant_less_what_icl_itself_does_not_repeat() -> None:
    (answer,) = judged(seeds=3).answers
    task = responses(seeds=3)
    expected = []
    for episode in task.cells[GD]:
        again = task.cells[IN_CONTEXT.under("reorder")][episode].pair("in-context", "answers")
        planted = task.cells[GD][episode].pair(plant_name("gd"), "answers")
        assert again is not None
        assert planted is not None
        expected.append(planted.plain * math.sqrt(again.value))
    assert answer.targets == pytest.approx(expected)


def test_a_learner_of_answers_alone_has_the_reliability_as_its_target() -> None:
    found = judged(rival=0.9)
    probe = next(answer for answer in found.answers if answer.learner == "probe")
    assert math.isnan(probe.plant)
    assert probe.target == pytest.approx(math.sqrt(probe.reliability), abs=0.02)


def test_gradient_descent_comes_first_and_a_closer_rival_is_named() -> None:
    found = judged(gd=0.4, rival=0.95)
    assert [answer.learner for answer in found.answers] == ["gd", "probe"]
    assert found.answers[0].answer == "partly alike"
    assert "A linear probe comes closer" in found.headline
    assert "80 % of the context's effect on the answers" in found.headline
    inside = replace(found.answers[0], where="inside", answer="different")
    said = headline([found.answers[0], inside])
    own = f"{short(inside.value.mean)}, where it would be {short(inside.target)}"
    assert said.endswith(f"Inside the model gradient descent and in-context learning move differently ({own}).")
    ranking = list(found.rankings["sst2"])
    assert ranking == ["probe", "gd"]


def test_a_rival_that_cannot_be_told_from_chance_is_not_called_closer() -> None:
    found = verdict_of(setting("model", 16), "trained", [responses(gd=0.0, plant=0.3, rival=0.2, seeds=3)], count=499)
    gd, probe = found.answers
    assert probe.answer not in ("alike", "partly alike")
    assert probe.value.mean > gd.value.mean + 0.05
    assert "comes closer" not in found.headline


def test_a_closer_learner_of_the_same_family_does_not_deny_alike() -> None:
    words = [
        judged(gd=0.8, plant=0.85, rival=0.99, who=who).answers[0].answer
        for who in (PROBE, LearnerSpec("lcgd", lr=1.0))
    ]
    assert words == ["partly alike", "alike"]


def test_of_several_rates_the_headline_takes_the_one_whose_plant_is_found_best() -> None:
    """And no task is left out of it: on the second task there is one rate alone."""
    both, single = responses(gd=0.5), replace_task(responses(gd=0.0), "subj")
    other = responses(gd=0.95, plant=0.8)
    slow = replace(GD, lr=0.1)
    both.cells[slow] = other.cells[GD]
    found = verdict_of(setting("model", 16), "trained", [both, single], count=499)
    assert [answer.learner for answer in found.answers] == ["gd lr=1", "gd lr=0.1", "gd"]
    assert "on sst2" in found.headline
    assert "move partly as in-context learning's do on sst2" in found.headline
    assert "move differently from in-context learning's on subj" in found.headline


def test_where_reasons_differ_each_task_has_its_own() -> None:
    lost, few = responses(plant=0.3), replace_task(responses(seeds=2), "subj")
    headline = verdict_of(setting("model", 16), "trained", [lost, few], count=499).headline
    assert "cannot be told (sst2: planted in the model, it is not found again" in headline
    assert "subj: 2 seeds cannot decide" in headline


def test_a_ceiling_is_shown_and_neither_judged_nor_a_rival() -> None:
    task, nearest = responses(), LearnerSpec("gd-nearest")
    alone = verdict_of(setting("model", 16), "trained", [task], count=499)
    rng = np.random.default_rng(3)
    for episode, cell in task.cells[GD].items():
        closer = part(0.99, rng, world(rng))
        task.cells.setdefault(nearest, {})[episode] = replace(cell, role="ceiling", family="shallow", parts=[closer])
    verdict = verdict_of(setting("model", 16), "trained", [task], count=499)
    assert verdict.answers == alone.answers
    (ceiling,) = verdict.ceilings  # and ICL in another order, a ceiling of another kind, is not among them
    values = [cell.pair("in-context", "answers") for cell in task.cells[nearest].values()]
    assert (ceiling.learning, ceiling.task, ceiling.where) == (nearest, "sst2", "answers")
    assert ceiling.value.seeds == tuple(pair.value for pair in values if pair)
    assert verdict.to_dict()["ceilings"][0]["learning"] == nearest.facts


def test_holm_counts_tasks_and_hypotheses() -> None:
    one = judged(gd=0.5).answers[0]
    tasks = [replace_task(responses(gd=0.5), str(i)) for i in range(4)]
    many = verdict_of(setting("model", 16), "trained", tasks, count=499).answers[0]
    assert many.p_holm == pytest.approx(min(1.0, 4 * one.p))


def replace_task(task: TaskResponses, name: str) -> TaskResponses:
    return replace(task, task=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("response") / "run"
    study = {
        "tasks": "embedded-sst2",
        "learners": ["gd", "probe"],
        "lr": 1.0,
        "shots": 8,
        "seeds": 3,
        "queries": 10,
        "interventions": [{"kind": "relabel", "draws": 8}, "flip-one"],
    }
    outcome = run_study(study, out)
    assert outcome.complete, outcome.failures
    assert run_study(study, out).computed == []
    return Run.open(out)


def test_a_run_says_what_its_responses_say(run: Run) -> None:
    rows = run.query("select distinct intervention, family, learner from rows where metric = 'response_answers'")
    assert {(row["intervention"], row["learner"]) for row in rows.to_pylist()} == {
        ("relabel", "gd"),
        ("relabel", "probe"),
        ("relabel", "in-context/reorder"),
        ("relabel", "in-context/places"),
    }
    (verdict,) = run.responses_verdicts
    assert {answer["learner"] for answer in verdict["answers"]} == {"gd", "probe"}
    assert run.verdict == verdict["headline"]
    json.dumps(verdict)


def test_a_report_opens_with_it(run: Run, tmp_path: Path) -> None:
    from dualscope.report import write_report

    page = write_report([str(run.folder)], tmp_path / "page.html").read_text()
    assert "Do they learn the same?" in page
    assert page.index("Do they learn the same?") < page.index("Likeness of the whole change")
    assert "What did each demonstration teach?" in page
