"""Sentence frames, and how they are filled: many sentences at once, straight in token ids.

A frame is a line of words and slots. ``{c}`` is a word of the example's own cluster, ``{o}`` a word of a cluster that
has nothing to do with the task, the others are neutral lists (``words.NEUTRAL``). The same function fills the text of
the embedded tasks and the millions of training sentences, so the two cannot differ.
"""

import numpy as np
from numpy.typing import NDArray

from dualscope.tasks.synthetic.lexicon import LEXICON

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
