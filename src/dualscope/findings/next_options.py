"""Where there is no answer: why, and the options with which the same command would give one. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ABSTRACT = {"--demo-labels": ["abstract"]}


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
        for answer in verdict["answers"]:
            for kind, why, options in _needs(answer):
                step = found.setdefault(kind, NextStep(why, options))
                step.asked += [f"{answer['task']}, {answer['learner']}"]
                step.tasks += [answer["task"]] if answer["task"] not in step.tasks else []
                if kind == "seeds" and int(options["--seeds"][0]) > seeds:
                    seeds = int(options["--seeds"][0])
                    step.why, step.options = why, options
    for step in found.values():
        step.asked = list(dict.fromkeys(step.asked))
    return list(found.values())


def _needs(answer: Mapping[str, Any]) -> list[tuple[str, str, dict[str, list[str]]]]:
    word = answer["answer"]
    if word == "labels ignored":
        return [("abstract", "the labels do not matter here; abstract words have to be learned", ABSTRACT)]
    if word == "labels copied":
        return [("abstract", "the labels are copied by their place; abstract words have to be learned", ABSTRACT)]
    if word == "cannot tell":
        needed = answer["seeds_needed"]
        if needed:
            return [("seeds", f"{needed} seeds would do", {"--seeds": [str(needed)]})]
        return [("abstract", "more seeds alone would not do; abstract words have to be learned", ABSTRACT)]
    if word != "inconclusive":
        return []
    if answer["missing"]:
        missing = {"untrained": {"--variant": ["trained", "untrained"]}, "null controls": {"--preset": ["controls"]}}
        return [(name, f"{name} not measured yet", missing[name]) for name in answer["missing"] if name in missing]
    needs = [one["seeds_needed"] for one in answer["comparisons"] if one["control"] == answer["decided_by"]]
    return [("seeds", f"about {n} seeds would do", {"--seeds": [str(n)]}) for n in needs if n]
