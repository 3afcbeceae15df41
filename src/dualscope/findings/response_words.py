"""The response's answer in words: the sentence that a report opens with, and the next step where there is none."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dualscope.core.statistics import finite_mean
from dualscope.findings.answer import learner_title, short

if TYPE_CHECKING:
    from dualscope.findings.responses import ResponseAnswer

MOVES = {
    "alike": "move as in-context learning's do",
    "partly alike": "move partly as in-context learning's do",
    "different": "move differently from in-context learning's",
}
INSIDE = {"alike": "move alike", "partly alike": "move partly alike", "different": "move differently"}


def next_step(answer: ResponseAnswer) -> str:
    """What a person can do where the answer is none, with the option that does it; empty where there is an answer."""
    if answer.answer == "labels ignored":
        return "the labels do not matter here: try --demo-labels abstract, whose words have to be learned"
    if answer.answer == "labels copied":
        return "the labels are copied by their place: try more --shots, or --demo-labels abstract"
    needed = answer.seeds_needed
    return f"{needed} seeds would do: --seeds {needed}" if answer.answer == "cannot tell" and needed else ""


def sentence(answer: ResponseAnswer) -> str:
    """One hypothesis on one task, of the answers or inside."""
    title = learner_title(answer.learning)
    scale = _scale(answer)
    if answer.answer in MOVES:
        whose = "answers" if answer.where == "answers" else "attention outputs"
        return f"{answer.task}: when the labels change, the {whose} of {title} {MOVES[answer.answer]} ({scale})."
    step = next_step(answer)
    told = {
        "labels ignored": "in-context learning ignores the labels: it recognises the task and learns nothing from them",
        "labels copied": "in-context learning copies labels by their place",
        "cannot tell": f"nothing can be said of {title}{' inside the model' * (answer.where == 'inside')}",
    }[answer.answer]
    why = f" ({answer.why})" if answer.why else ""
    return f"{answer.task}: {told}{why}." + (f" Next: {step}." if step else "")


def _scale(answer: ResponseAnswer) -> str:
    if not math.isfinite(answer.target):
        return short(answer.value.mean)
    return f"{short(answer.value.mean)}, where 0 is chance and {short(answer.target)} is what we would see if it were"


def headline(answers: Sequence[ResponseAnswer]) -> str:
    """The answer in a few sentences: do the labels matter, does the first hypothesis respond alike, what is closer."""
    own = [answer for answer in answers if answer.where == "answers"]
    if not own:
        return "No answer: no learner's response was measured."
    mine = _of_the_first(own)
    silent = [answer for answer in mine if answer.answer in ("labels ignored", "labels copied")]
    said = [
        _silent(group)
        for word in ("labels ignored", "labels copied")
        if (group := [a for a in silent if a.answer == word])
    ]
    heard = [answer for answer in mine if answer not in silent]
    if heard:
        said.append(_heard(heard, own, [a for a in answers if a.where == "inside"]))
    return " ".join(said)


def _of_the_first(answers: Sequence[ResponseAnswer]) -> list[ResponseAnswer]:
    """The first hypothesis on every task; of several rates the one whose plant is found best."""
    first = answers[0].learning
    found: dict[str, ResponseAnswer] = {}
    for answer in answers:
        if replace(answer.learning, lr=first.lr) == first:
            best = found.setdefault(answer.task, answer)
            if answer.plant > best.plant or math.isnan(best.plant):
                found[answer.task] = answer
    return list(found.values())


def _silent(answers: Sequence[ResponseAnswer]) -> str:
    where = _tasks(answers)
    if answers[0].answer == "labels ignored":
        return (
            f"On {where} the demonstrations' labels are ignored: {_percent(answers)} of the context's effect on the "
            "answers depends on them. The task is recognised, and nothing is learned from the demonstrations."
        )
    return (
        f"On {where} the labels are copied by their place: with the same demonstrations in another order the model "
        f"responds differently (r of {short(finite_mean([a.reliability for a in answers]))}), so there is no learning "
        "to compare."
    )


def _heard(mine: Sequence[ResponseAnswer], answers: Sequence[ResponseAnswer], inside: Sequence[ResponseAnswer]) -> str:
    title = learner_title(mine[0].learning)
    tasks = {answer.task for answer in mine}
    start = (
        f"On {_tasks(mine)} the demonstrations' labels matter: {_percent(mine)} of the context's effect on the answers "
        "depends on them."
    )
    body = " ".join(_moved(group, title, tasks) for group in _by_word(mine))
    rival = _rival(mine, [a for a in answers if a.task in tasks])
    chosen = {(answer.task, answer.learner) for answer in mine}
    deep = [a for a in inside if (a.task, a.learner) in chosen]
    below = " ".join(_inside(group, title, tasks) for group in _by_word(deep))
    return " ".join(part for part in (start, body, rival, below) if part)


def _by_word(answers: Sequence[ResponseAnswer]) -> list[list[ResponseAnswer]]:
    words = dict.fromkeys(answer.answer for answer in answers)
    return [[answer for answer in answers if answer.answer == word] for word in words]


def _moved(answers: Sequence[ResponseAnswer], title: str, said: Collection[str]) -> str:
    word, value = answers[0].answer, finite_mean([a.value.mean for a in answers])
    target = finite_mean([a.target for a in answers])
    where = _on(answers, said)
    if word == "cannot tell":
        step = next_step(max(answers, key=lambda a: a.seeds_needed or 0))
        why = "; ".join(filter(None, (_reasons(answers), step)))
        return f"Whether {title} responds alike{where} cannot be told ({why})."
    scale = f"{short(value)}, where 0 is chance"
    if math.isfinite(target):
        scale += f" and {short(target)} is what we would see if it were {title}"
    return f"When they change, the answers of {title} {MOVES[word]}{where}: {scale}."


def _on(answers: Sequence[ResponseAnswer], said: Collection[str]) -> str:
    """Which tasks a sentence is about, where these are not all that were named before it."""
    return "" if {answer.task for answer in answers} == set(said) else f" on {_tasks(answers)}"


def _reasons(answers: Sequence[ResponseAnswer]) -> str:
    """Why there is no answer; by task where the reasons differ."""
    tasks: dict[str, list[ResponseAnswer]] = {}
    for answer in answers:
        tasks.setdefault(answer.why, []).append(answer)
    return "; ".join(tasks) if len(tasks) < 2 else "; ".join(f"{_tasks(own)}: {why}" for why, own in tasks.items())


def _inside(answers: Sequence[ResponseAnswer], title: str, said: Collection[str]) -> str:
    word = answers[0].answer
    value, target = finite_mean([a.value.mean for a in answers]), finite_mean([a.target for a in answers])
    if word not in INSIDE:
        reasons = _reasons(answers)
        return f"What happens inside the model{_on(answers, said)}: {word}{f' ({reasons})' if reasons else ''}."
    scale = short(value) + (f", where it would be {short(target)}" if math.isfinite(target) else "")
    return f"Inside the model {title} and in-context learning {INSIDE[word]}{_on(answers, said)} ({scale})."


def _rival(mine: Sequence[ResponseAnswer], answers: Sequence[ResponseAnswer]) -> str:
    """The hypothesis that comes closest, where it is another one, is clearly higher on average, and is above chance."""
    own = mine[0].learning.name
    names = dict.fromkeys(answer.learner for answer in answers if answer.learning.name != own)
    value = {n: finite_mean([a.value.mean for a in answers if a.learner == n]) for n in names}
    best = max(value, key=lambda name: value[name], default=None)
    if best is None or not value[best] > finite_mean([a.value.mean for a in mine]) + 0.05:
        return ""
    theirs = [answer for answer in answers if answer.learner == best]
    if not any(answer.answer in ("alike", "partly alike") for answer in theirs):
        return ""
    chosen = theirs[0]
    title = learner_title(chosen.learning)
    return f"{title[0].upper()}{title[1:]} comes closer ({short(value[best])})."


def _percent(answers: Sequence[ResponseAnswer]) -> str:
    shares = sorted(round(100 * answer.learned) for answer in answers if math.isfinite(answer.learned))
    if not shares:
        return "an unknown share"
    return f"{shares[0]} %" if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]} %"


def _tasks(answers: Sequence[ResponseAnswer]) -> str:
    names = list(dict.fromkeys(answer.task for answer in answers))
    if len(names) > 3:
        return f"{len(names)} tasks"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
