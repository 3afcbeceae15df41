"""The generators that the catalog's embedded tasks name: rows of text with a class."""

from collections.abc import Callable

import numpy as np

from dualscope.tasks.synthetic.attributes import Attribute
from dualscope.tasks.synthetic.lexicon import LEXICON
from dualscope.tasks.synthetic.pairs import write_pairs
from dualscope.tasks.synthetic.sentences import Ids, write_sentences

GeneratedRow = dict[str, str | int]

# Distractors come from clusters of no embedded task.
DISTRACTORS: Ids = np.array([LEXICON.clusters.index(name) for name in ("weather", "kitchen", "clothes", "furniture")])


def draw_members(attribute: Attribute, n: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Classes [n], and for each a cluster (or relation) of that class [n], uniform.

    Every class comes once in each run of as many rows as there are classes, so that chance is what it seems to be.
    """
    k = len(attribute.classes)
    label = rng.permuted(np.tile(np.arange(k), (-(-n // k), 1)), axis=1).ravel()[:n]
    sizes = np.array([len(members) for members in attribute.classes])
    table = np.zeros((len(sizes), sizes.max()), dtype=np.int64)
    for row, members in zip(table, attribute.classes, strict=True):
        row[: len(members)] = members
    return label, table[label, (rng.random(n) * sizes[label]).astype(np.int64)]


def generate_rows(attribute: Attribute, n: int, rng: np.random.Generator) -> list[GeneratedRow]:
    """``n`` different rows, each with the fields of the task's template and ``label``.

    >>> from dualscope.tasks.synthetic.attributes import ATTRIBUTES
    >>> rows = generate_rows(ATTRIBUTES[0], 2, np.random.default_rng(0))
    >>> sorted(rows[0])
    ['label', 'text']
    """
    rows: dict[tuple[str | int, ...], GeneratedRow] = {}
    while len(rows) < n:
        for row in _draw_rows(attribute, n - len(rows), rng):
            rows.setdefault(tuple(row.values()), row)
    return list(rows.values())


def _draw_rows(attribute: Attribute, n: int, rng: np.random.Generator) -> list[GeneratedRow]:
    label, member = draw_members(attribute, n, rng)
    if attribute.of_pairs:
        premise, hypothesis = write_pairs(member, rng)
        return [
            {"premise": LEXICON.text(premise[i]), "hypothesis": LEXICON.text(hypothesis[i]), "label": int(label[i])}
            for i in range(n)
        ]
    other = DISTRACTORS[rng.integers(0, len(DISTRACTORS), n)]
    text = write_sentences(member, other, np.full(n, attribute.style), rng)
    return [{"text": LEXICON.text(text[i]), "label": int(label[i])} for i in range(n)]


def generator(attribute: Attribute) -> Callable[[int, np.random.Generator], list[GeneratedRow]]:
    """The function that a catalog file names as ``embedded-<name>``."""
    return lambda n, rng: generate_rows(attribute, n, rng)
