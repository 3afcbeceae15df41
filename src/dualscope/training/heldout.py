"""What training never shows: the split between training tasks and held-out tasks, by construction.

Every cluster and every label word has a residue modulo ``PARTS``, from a fixed shuffle. In training, two clusters of
the same residue never share a class, and a cluster never has a label word whose residue adds up with its own to a
multiple of ``PARTS``. A held-out task uses exactly those combinations: each class joins two clusters of one residue,
under a label word that neither of them ever had. Also apart in training are the clusters that an embedded task joins
in one class, except the known ones (``tasks.generate.attributes``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualscope.tasks.synthetic.attributes import ATTRIBUTES
from dualscope.tasks.synthetic.lexicon import LEXICON

PARTS = 7


def _residues(n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(n) % PARTS


_CLUSTER = _residues(len(LEXICON.clusters), 1)
_LABEL = _residues(len(LEXICON.labels), 2)

# [clusters, clusters]: may not share a class in training;  [clusters, labels]: may not go together in training
APART: NDArray[np.bool_] = _CLUSTER[:, None] == _CLUSTER[None, :]
FORBIDDEN: NDArray[np.bool_] = (_CLUSTER[:, None] + _LABEL[None, :]) % PARTS == 0
# [clusters, labels]: pairs that training does show, as canonical ones, whatever the residues say
CANONICAL: NDArray[np.bool_] = np.zeros_like(FORBIDDEN)

for _attribute in ATTRIBUTES:
    if _attribute.of_pairs:
        continue
    for _word, _members, _known in zip(_attribute.labels, _attribute.classes, _attribute.known, strict=True):
        for _one in _members:
            for _two in _members:
                if not (_one in _known and _two in _known):
                    APART[_one, _two] = True
        CANONICAL[list(_known), LEXICON.labels.index(_word)] = True


@dataclass(frozen=True)
class Mapping:
    """A task in training's terms: each class's clusters, and the number of its label word."""

    classes: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]  # into ``LEXICON.labels``


def held_out_tasks(n: int, classes: int, rng: np.random.Generator) -> list[Mapping]:
    """``n`` tasks of which no class, and no pair of cluster and label word, occurred in training."""
    tasks: list[Mapping] = []
    while len(tasks) < n:
        members: list[tuple[int, ...]] = []
        words: list[int] = []
        for residue in rng.permutation(PARTS)[:classes]:
            pair = rng.permutation(np.flatnonzero(residue == _CLUSTER))[:2]
            allowed = np.flatnonzero(FORBIDDEN[pair].all(axis=0) & ~CANONICAL[pair].any(axis=0))
            members.append(tuple(int(c) for c in pair))
            words.append(int(rng.choice(allowed)))
        tasks.append(Mapping(tuple(members), tuple(words)))
    return tasks
