"""What the page knows when it opens: what it may choose from, and something to play with."""

from __future__ import annotations

from typing import Any

from dualscope.explorer import state as caps
from dualscope.explorer.offer import FIRST, Offer
from dualscope.findings.response_words import MOVES
from dualscope.tasks.episode import Episode
from dualscope.tasks.mapping import Example
from dualscope.tasks.task import Task

SHOTS = 8
QUERIES = 3
RATE = 0.1  # where no model card records one
AGAINST = "move against in-context learning's"  # a screen shows it; a verdict has no such word


def start_of(offer: Offer) -> dict[str, Any]:
    return {
        "models": list(offer.models),
        "tasks": [
            {"name": name, "labels": list(task.labels), "template": task.template} for name, task in offer.tasks.items()
        ],
        "learners": offer.learners(),
        "most": {
            "text": caps.MOST_TEXT,
            "demonstrations": caps.MOST_DEMONSTRATIONS,
            "queries": caps.MOST_QUERIES,
            "labels": caps.MOST_LABELS,
        },
        "moves": {**MOVES, "opposite": AGAINST},
        "state": first_state(offer),
    }


def first_state(offer: Offer) -> dict[str, Any]:
    """The first task's own draw, so that the first screen shows something that learns."""
    task = next(iter(offer.tasks.values()))
    known = {learner["name"] for learner in offer.learners()}
    return {
        "version": 1,
        "model": offer.models[0],
        **drawn(task, SHOTS, QUERIES, seed=0),
        "learners": [name for name in FIRST if name in known],
        "focus": FIRST[0],
        "rate": recorded(offer.models[0], task) or RATE,
        "steps": None,
        "seed": 0,
        "view": {"query": 0, "layer": None, "head": None},
    }


def drawn(task: Task, shots: int, queries: int, seed: int) -> dict[str, Any]:
    """A draw from a task, as a state has it."""
    shots = min(shots, len(task.train) - 1) or 1
    episode = Episode.draw(task, shots=shots, queries=queries, seed=seed)
    return {
        "task": task.name,
        "template": task.template,
        "labels": list(task.labels),
        "separator": task.separator,
        "demonstrations": [typed(example) for example in episode.demonstrations],
        "queries": [typed(example) for example in episode.queries],
    }


def typed(example: Example) -> dict[str, Any]:
    return {"fields": {name: text[: caps.MOST_TEXT] for name, text in example.fields.items()}, "label": example.label}


def recorded(model: str, task: Task) -> float | None:
    """The rate that the model's card has for a task."""
    from dualscope.studies.resolve import recorded_rates

    return recorded_rates([model], [task.name]).get((model, task.name))
