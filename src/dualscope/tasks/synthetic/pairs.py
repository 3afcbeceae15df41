"""Pairs of sentences, premise and hypothesis, in six relations: the entailment-like task.

The premise says two things of a subject; the hypothesis says the same, the opposite, or something else, plainly or
with "not". "not" and the opposite word together say the same again.
"""

import numpy as np

from dualscope.tasks.synthetic.lexicon import LEXICON
from dualscope.tasks.synthetic.sentences import Ids

RELATIONS = ("same", "opposite", "unrelated", "not-same", "not-opposite", "not-unrelated")
_NOT = 3  # relations from here on have "not" in the hypothesis

_OPPOSITES: Ids = np.array([LEXICON.ids(" ".join(pair)) for pair in LEXICON.opposites])  # [pairs, 2]
_SUBJECT, _FIRST, _SECOND, _SAID, _NAME = -2, -3, -4, -5, -6
_SLOTS = {"{subject}": _SUBJECT, "{first}": _FIRST, "{second}": _SECOND, "{said}": _SAID, "{name}": _NAME}
NOTHING = -1


def _frames(*frames: str) -> Ids:
    slots = [[_SLOTS[word] if word in _SLOTS else LEXICON.id(word) for word in frame.split()] for frame in frames]
    longest = max(map(len, slots))
    return np.array([line + [NOTHING] * (longest - len(line)) for line in slots])


PREMISES = _frames(
    "the {subject} was {first} and {second} .",
    "{name} said that the {subject} was {first} and {second} .",
    "it is {first} and also {second} , this {subject} .",
)
HYPOTHESES = _frames("the {subject} was {said}", "the {subject} was not {said}")


def write_pairs(relation: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Premises and hypotheses of the given relations [n]: ids [n, longest] each, ``NOTHING`` at the end."""
    n = len(relation)
    # Three different pairs of opposites: what the premise says first, second, and what it does not speak of.
    pair = rng.random((n, len(_OPPOSITES))).argsort(axis=1)[:, :3]
    side = rng.integers(0, 2, (n, 3))
    # Which of the three the hypothesis is about.
    about = np.where(relation % _NOT == 2, 2, rng.integers(0, 2, n))
    row = np.arange(n)
    said_side = side[row, about] ^ (relation % _NOT == 1)
    fill = {
        _SUBJECT: _draw("thing", n, rng),
        _NAME: _draw("name", n, rng),
        _FIRST: _OPPOSITES[pair[:, 0], side[:, 0]],
        _SECOND: _OPPOSITES[pair[:, 1], side[:, 1]],
        _SAID: _OPPOSITES[pair[row, about], said_side],
    }
    premise = PREMISES[rng.integers(0, len(PREMISES), n)]
    hypothesis = HYPOTHESES[(relation >= _NOT).astype(np.int64)]
    for slot, words in fill.items():
        premise = np.where(premise == slot, words[:, None], premise)
        hypothesis = np.where(hypothesis == slot, words[:, None], hypothesis)
    return premise, hypothesis


def _draw(name: str, n: int, rng: np.random.Generator) -> Ids:
    which = len(LEXICON.parts) + LEXICON.neutral.index(name)
    found: Ids = LEXICON.table[which, rng.integers(0, LEXICON.sizes[which], n)]
    return found
