"""Sentence frames, and how they are filled: many sentences at once, straight in token ids.

A frame is a line of words and slots. ``{c}`` is a word of the example's own cluster, ``{o}`` a word of a cluster that
has nothing to do with the task, the others are neutral lists (``words.NEUTRAL``). The same function fills the text of
the embedded tasks and the millions of training sentences, so the two cannot differ.
"""

import numpy as np
from numpy.typing import NDArray

from dualscope.tasks.synthetic.generated_words import LEXICON

Ids = NDArray[np.int64]
NOTHING = -1  # an empty place after the end of a short sentence
_CLASS, _OTHER = -2, -3
_LISTS = -10  # slot -10 - i is neutral list i

STATEMENT, QUESTION = 0, 1
FRAMES: dict[tuple[int, str], tuple[str, ...]] = {
    (STATEMENT, "noun"): (
        "the {c} and the {c} were by the {o} .",
        "this {c} of {name} had one {c} and some {c} .",
        "{name} {did} the {c} with that {c} {when} .",
        "it was the {c} , the {c} and some {thing} .",
        "they {did} one {c} and the {c} from the {thing} .",
        "in the {thing} we {did} the {c} by the {c} .",
        "every {c} in this {thing} had some {c} and one {o} .",
        "all of the {c} and {c} were in {where} with {name} .",
    ),
    (STATEMENT, "adjective"): (
        "the {thing} was {degree} {c} and {degree} {c} .",
        "{name} {did} this {c} and {c} {thing} {when} .",
        "it was one {c} , {c} {thing} with the {o} .",
        "that {thing} is {c} but also {c} and {c} .",
        "we {did} the {c} {thing} and the {c} {o} .",
        "{name} was {when} {c} and the {thing} {degree} {c} .",
        "this {degree} {c} {thing} of {name} is {c} .",
        "so {c} was the {o} , and so {c} the {thing} .",
    ),
    (STATEMENT, "verb"): (
        "{name} {c} and {c} by the {thing} {when} .",
        "they {c} with the {o} , but we {c} .",
        "in the {thing} {name} {c} , {c} and {c} .",
        "{name} and {name} {c} but she {c} {when} .",
        "she {c} in {where} and {degree} often {c} .",
        "he {c} , he {c} and he {did} the {o} .",
    ),
    (QUESTION, "noun"): (
        "what is the {c} of the {c} in {where} ?",
        "which {c} had one {c} and some {thing} ?",
        "who {did} the {c} and the {c} {when} ?",
        "where was the {c} that {name} {did} with the {c} ?",
        "how did the {c} of {name} and the {c} of the {o} work ?",
        "what {c} and what {c} were in the {thing} ?",
    ),
    (QUESTION, "adjective"): (
        "what was {c} and {degree} {c} about the {thing} ?",
        "who {did} the {c} and {c} {thing} {when} ?",
        "which {o} is {c} but also {c} ?",
        "how {c} was the {thing} and how {c} the {o} ?",
    ),
    (QUESTION, "verb"): (
        "who {c} and {c} by the {o} ?",
        "where was the {thing} when {name} {c} and {c} ?",
        "which of all the {o} {c} , {c} and {c} ?",
    ),
}
PARTS = ("noun", "adjective", "verb")


def _slot(word: str) -> int:
    match word:
        case "{c}":
            return _CLASS
        case "{o}":
            return _OTHER
        case _ if word.startswith("{"):
            return _LISTS - LEXICON.neutral.index(word[1:-1])
        case _:
            return LEXICON.id(word)


_slots = [[_slot(word) for word in frame.split()] for frames in FRAMES.values() for frame in frames]
LONGEST = max(map(len, _slots))
_TABLE: Ids = np.array([slots + [NOTHING] * (LONGEST - len(slots)) for slots in _slots])
_COUNT: Ids = np.array([[len(FRAMES[style, part]) for part in PARTS] for style in (STATEMENT, QUESTION)])
_START: Ids = np.concatenate([[0], np.cumsum(_COUNT.ravel())[:-1]]).reshape(_COUNT.shape)
_PART: Ids = np.array([PARTS.index(part) for part in LEXICON.parts])


def write_sentences(cluster: Ids, other: Ids, style: Ids, rng: np.random.Generator) -> Ids:
    """Sentences about ``cluster`` [n] with distractors from ``other`` [n]: ids [n, LONGEST], ``NOTHING`` at the end."""
    part = _PART[cluster]
    frame = _START[style, part] + (rng.random(len(cluster)) * _COUNT[style, part]).astype(np.int64)
    slots = _TABLE[frame]  # [n, LONGEST]
    of_cluster = np.where(slots == _CLASS, cluster[:, None], other[:, None])
    which = np.where(slots <= _LISTS, len(LEXICON.parts) + _LISTS - slots, of_cluster)
    drawn = LEXICON.table[which, (rng.random(slots.shape) * LEXICON.sizes[which]).astype(np.int64)]
    return np.where(slots >= NOTHING, slots, drawn)


# Pairs of sentences, premise and hypothesis, in six relations: the entailment-like task.
#
# The premise says two things of a subject; the hypothesis says the same, the opposite, or something else, plainly or
# with "not". "not" and the opposite word together say the same again.


RELATIONS = ("same", "opposite", "unrelated", "not-same", "not-opposite", "not-unrelated")
_NOT = 3  # relations from here on have "not" in the hypothesis

_OPPOSITES: Ids = np.array([LEXICON.ids(" ".join(pair)) for pair in LEXICON.opposites])  # [pairs, 2]
_SUBJECT, _FIRST, _SECOND, _SAID, _NAME = -2, -3, -4, -5, -6
_SLOTS = {"{subject}": _SUBJECT, "{first}": _FIRST, "{second}": _SECOND, "{said}": _SAID, "{name}": _NAME}


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
