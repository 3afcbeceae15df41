"""The answer in one sentence that names the control that decided: for terminal, page and notebook alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualscope.core.spec import PLAIN
from dualscope.findings.answer import EXPLAINED, HOW_TO_MEASURE, AgainstControl, Answer, Word, learner_title, short

INSTEAD: dict[str, str] = {
    "untrained": "the same on untrained weights",
    "random-update": "a random change of the same size",
    "mismatched": "the change that belongs to another query",
    "position": "moving the query to its position in context, with nothing to learn from,",
    "dilution": "diluting attention as the context does, with nothing to learn from,",
    "null context": "a context that teaches nothing",
    "random labels": "the same on random labels",
    "other task": "the same on another task's demonstrations",
}
"""What is compared with in-context learning in place of the learner."""
ABOUT = "Likeness of the whole change."
"""What the sentence is about: all that a context does, of which what is learned from it is a part."""


def headline(answers: Sequence[Answer]) -> str:
    """The answer on plain gradient descent, or on what comes first, for a person who has ten seconds.

    >>> headline([])
    'No answer: no learner was compared with in-context learning.'
    """
    if not answers:
        return "No answer: no learner was compared with in-context learning."
    lead = next((a for a in answers if a.learning.name == PLAIN and a.learning.options == "{}"), answers[0])
    return f"{ABOUT} {sentence([answer for answer in answers if answer.learner == lead.learner])}"


def sentence(answers: Sequence[Answer]) -> str:
    """One learner on its tasks."""
    by_word: dict[Word, list[Answer]] = {}
    for answer in answers:
        by_word.setdefault(answer.answer, []).append(answer)
    above, below = by_word.get("above the controls", []), by_word.get("not above", [])
    if below and above:
        where = f"above every control on {_tasks(above)}; not on {_tasks(below)}"
        return f"It depends on the task: {where}, where {_below(below)}."
    if below:
        where = "" if len(below) == len(answers) else f" (on {_tasks(below)})"
        return f"Not above its controls{where}: {_below(below)}."
    if open_ := by_word.get("inconclusive"):
        where = f"; on {_tasks(above)} it is above every control" if above else ""
        return f"Undecided: {_undecided(open_)}{where}."
    if above:
        rest = "" if len(above) == len(answers) else f" (on {_tasks(above)}; the rest cannot be tested)"
        return f"Above every control that was measured{rest}: {_above(above)}."
    return f"Not testable: {_untestable(answers)}, so there is no learning to compare."


def _below(answers: Sequence[Answer]) -> str:
    """What does at least as well in the learner's place: the kind of control that decided most often."""
    decided = [(a, c) for a in answers if (c := a.decided_by) is not None]
    kinds = Counter(control.kind for _, control in decided)
    kind = max(kinds, key=lambda one: (kinds[one], one in INSTEAD))
    chosen = [(a, c) for a, c in decided if c.kind == kind]
    own, other = mean([a.value.mean for a, _ in chosen]), mean([c.control_value.mean for _, c in chosen])
    title, more = learner_title(answers[0].learning), other > own
    if kind == "beyond dilution":
        left = mean([c.difference.mean for _, c in chosen])
        return (
            f"hardly anything of the likeness of {title} ({short(own)}) is left ({short(left)}) beyond what diluted "
            "attention gives any learner"
        )
    if kind == "likeness to a null":
        than = "more like" if more else "as much like"
        end = "than like" if more else "as like"
        return f"{title} is {than} {INSTEAD['null context']} ({short(other)}) {end} in-context learning ({short(own)})"
    what = INSTEAD.get(kind, chosen[0][1].control)
    if answers[0].measure == EXPLAINED:
        how = f"more ({short(other)}) than" if more else f"as much ({short(other)}) as"
        return f"{what} explains {how} {title} does ({short(own)})"
    how = "more like in-context learning" if more else "as like in-context learning"
    return f"{what} is {how} ({short(other)}) {'than' if more else 'as'} {title} is ({short(own)})"


def _undecided(answers: Sequence[Answer]) -> str:
    title, first = learner_title(answers[0].learning), answers[0]
    own = mean([a.value.mean for a in answers])
    missing = list(dict.fromkeys(name for a in answers for name in a.missing))
    if missing:
        add = " and ".join(HOW_TO_MEASURE[name] for name in missing)
        return f"{title} ({short(own)}) was not compared with {' and '.join(missing)} (add {add})"
    seeds = f"{first.value.seeds} seed{'s' * (first.value.seeds != 1)}"
    closest = first.decided_by
    if closest is None:
        return f"{seeds} cannot decide about {title} ({short(own)})"
    needed = closest.seeds_needed
    would = f", about {needed} would" if needed and needed > first.value.seeds else ""
    pair = f"({short(first.value.mean)}) from {_nearest(closest)}"
    return f"on {first.task}, {seeds} cannot tell {title} {pair}{would}"


def _above(answers: Sequence[Answer]) -> str:
    title, own = learner_title(answers[0].learning), mean([a.value.mean for a in answers])
    closest = min((c for a in answers if (c := a.decided_by) is not None), key=lambda c: c.difference.mean)
    what = "explained share" if answers[0].measure == EXPLAINED else "likeness"
    return f"the {what} of {title} is {short(own)}; what comes nearest is {_nearest(closest)}"


def _nearest(control: AgainstControl) -> str:
    if control.kind == "beyond dilution":
        return f"what diluted attention gives any learner ({short(control.difference.mean)} are left beyond it)"
    what = INSTEAD.get(control.kind, control.control).rstrip(",")
    return f"{what} ({short(control.control_value.mean)})"


def _untestable(answers: Sequence[Answer]) -> str:
    if not any(a.value.seeds for a in answers):
        return "the context hardly changes the answers beyond what a temperature and biases would"
    deaf = [a for a in answers if not a.icl_learned]
    if len(deaf) == len(answers):
        return "in-context learning does not clearly beat zero-shot and chance"
    where = f", nor does in-context learning on {_tasks(deaf)}" if deaf else ""
    return f"{learner_title(answers[0].learning)} does not clearly beat zero-shot and chance{where}"


def _tasks(answers: Sequence[Answer]) -> str:
    names = list(dict.fromkeys(answer.task for answer in answers))
    return f"{len(names)} tasks" if len(names) > 3 else " and ".join(names)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# Where there is no answer: why, and the options with which the same command would give one. No torch.


ABSTRACT = {"--demo-labels": ["abstract"]}
TUNED = "gd-tuned"
"""Descent at the settings at which it learns best: the strongest case for it where the plain one hardly learns."""


@dataclass
class NextStep:
    """One command would answer these."""

    why: str
    options: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)  # task and learner of each answer that is missing
    tasks: list[str] = field(default_factory=list)


def next_steps(responses: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> list[NextStep]:
    """For every answer that is none, what would give it; answers that need the same share a step.

    Of several numbers of seeds the largest serves all.

    >>> answer = {"task": "sst2", "learner": "gd", "answer": "cannot tell", "seeds_needed": 8}
    >>> [step.options for step in next_steps([{"variant": "trained", "answers": [answer]}], [])]
    [{'--seeds': ['8']}]
    """
    found: dict[str, NextStep] = {}
    seeds = 0
    judged = [verdict for verdict in responses if verdict["variant"] == "trained"]
    for verdict in judged or verdicts:
        learners = list(dict.fromkeys(answer["learner"] for answer in verdict["answers"]))
        for answer in verdict["answers"]:
            for kind, why, options in _needs(answer, learners):
                step = found.setdefault(kind, NextStep(why, options))
                step.asked += [f"{answer['task']}, {answer['learner']}"]
                step.tasks += [answer["task"]] if answer["task"] not in step.tasks else []
                if kind == "seeds" and int(options["--seeds"][0]) > seeds:
                    seeds = int(options["--seeds"][0])
                    step.why, step.options = why, options
    for step in found.values():
        step.asked = list(dict.fromkeys(step.asked))
    return list(found.values())


def _needs(answer: Mapping[str, Any], learners: Sequence[str]) -> list[tuple[str, str, dict[str, list[str]]]]:
    word = answer["answer"]
    if word == "labels ignored":
        return [("abstract", "the labels do not matter here; words without a meaning have to be learned", ABSTRACT)]
    if word == "labels copied":
        return [
            ("abstract", "the labels are copied by their place; words without a meaning have to be learned", ABSTRACT)
        ]
    if word == "cannot tell":
        needed = answer["seeds_needed"]
        if needed:
            return [("seeds", f"{needed} seeds would do", {"--seeds": [str(needed)]})]
        if answer.get("family") == "gradient" and TUNED not in learners:
            why = f"more seeds alone would not do; {TUNED} takes the settings at which descent learns best here"
            return [("tuned", why, {"--learner": [*(name for name in learners if "[" not in name), TUNED]})]
        return [("abstract", "more seeds alone would not do; words without a meaning have to be learned", ABSTRACT)]
    if word != "inconclusive":
        return []
    if answer["missing"]:
        missing = {"untrained": {"--variant": ["trained", "untrained"]}, "null controls": {"--preset": ["controls"]}}
        return [(name, f"{name} not measured yet", missing[name]) for name in answer["missing"] if name in missing]
    needs = [one["seeds_needed"] for one in answer["comparisons"] if one["control"] == answer["decided_by"]]
    return [("seeds", f"about {n} seeds would do", {"--seeds": [str(n)]}) for n in needs if n]
