"""Training sequences: each is one task, shown by as many labelled examples as fit.

    <bos> prompt label <eos> prompt label <eos> ...

exactly as an episode's context. Tasks are composed sequence by sequence; their sentences are written for a whole batch
at once. Batch ``step`` depends on the seed and ``step`` alone, so a resumed training sees what it would have seen.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualscope.tasks.synthetic.embedded_tasks import ATTRIBUTES
from dualscope.tasks.synthetic.generated_words import FORMATS, LEXICON, TASK_LABELS
from dualscope.tasks.synthetic.sentences import RELATIONS, Ids, write_pairs, write_sentences

# What training never shows: the split between training tasks and held-out tasks, by construction.
#
# Every cluster and every label word has a residue modulo ``PARTS``, from a fixed shuffle. In training, two clusters
# of the same residue never share a class, and a cluster never has a label word whose residue adds up with its own to
# a multiple of ``PARTS``. A held-out task uses exactly those combinations: each class joins two clusters of one
# residue, under a label word that neither of them ever had. Also apart in training are the clusters that an embedded
# task joins in one class, except the known ones (``tasks.generate.attributes``).


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


BOS, EOS = LEXICON.id("<bos>"), LEXICON.id("<eos>")
LABEL_IDS: Ids = np.array([LEXICON.id(word) for word in LEXICON.labels])
_OWN_LABELS = len(TASK_LABELS.split())
_NOUNS: Ids = np.array([i for i, part in enumerate(LEXICON.parts) if part == "noun"])
_FORMAT_IDS: Ids = np.array([LEXICON.ids(" ".join(pair)) for pair in FORMATS.values()])
_FORMAT_NUMBER = {name: number for number, name in enumerate(FORMATS)}
_QUESTION_MARK, _QUESTION, _ANSWER = (LEXICON.id(word) for word in ("?", "Question:", "Answer:"))
SHORTEST_EXAMPLE = 11  # tokens; how many examples surely fill a sequence


@dataclass(frozen=True)
class Mixture:
    """The shares of the kinds of sequence; what is left of 1 has clusters and label words at random.

    ``canonical``: an embedded task's known clusters under its own label words. ``extended``: the same, and each class
    has another cluster beside. ``relations``: pairs of sentences, relations and label words at random.
    """

    canonical: float = 0.25
    extended: float = 0.15
    relations: float = 0.15


@dataclass(frozen=True)
class Sequence:
    """The task of one training sequence."""

    mapping: Mapping
    of_pairs: bool
    format: int
    style: int


@dataclass(frozen=True)
class TokenBatch:
    tokens: NDArray[np.int16]  # [sequences, length]
    is_label: NDArray[np.bool_]  # [sequences, length]: a label word stands here


def draw_batch(seed: int, step: int, sequences: int, length: int, mixture: Mixture | None = None) -> TokenBatch:
    """The batch of a step, the same whenever it is asked for."""
    rng = np.random.default_rng([seed, step])
    return write_batch([draw_sequence(rng, mixture or Mixture()) for _ in range(sequences)], length, rng)


def draw_sequence(rng: np.random.Generator, mixture: Mixture) -> Sequence:
    kind = rng.random()
    if kind < mixture.canonical:
        return _canonical(rng)
    kind -= mixture.canonical
    if kind < mixture.extended:
        return _extended(rng)
    kind -= mixture.extended
    if kind < mixture.relations:
        return _random_relations(rng)
    return _random_clusters(rng)


def _canonical(rng: np.random.Generator) -> Sequence:
    attribute = ATTRIBUTES[rng.integers(len(ATTRIBUTES))]
    labels = tuple(LEXICON.labels.index(word) for word in attribute.labels)
    mapping = Mapping(attribute.known, labels)
    number = 0 if attribute.of_pairs else _FORMAT_NUMBER[attribute.format]
    return Sequence(mapping, attribute.of_pairs, number, attribute.style)


def _extended(rng: np.random.Generator) -> Sequence:
    sequence = _canonical(rng)
    if sequence.of_pairs:
        return sequence
    classes = [list(members) for members in sequence.mapping.classes]
    free = [int(c) for c in rng.permutation(len(LEXICON.clusters))]
    for members, label in zip(classes, sequence.mapping.labels, strict=True):
        for c in free:
            taken = any(c in others for others in classes)
            if not taken and not APART[c, members].any() and not FORBIDDEN[c, label]:
                members.append(c)
                break
    mapping = Mapping(tuple(map(tuple, classes)), sequence.mapping.labels)
    return Sequence(mapping, False, sequence.format, sequence.style)


def _random_relations(rng: np.random.Generator) -> Sequence:
    # Half of them without "not": the relation itself has to be learned first.
    relations = rng.permutation(len(RELATIONS) if rng.random() < 0.5 else len(RELATIONS) // 2)
    classes = int(rng.integers(2, 4))
    members = tuple(tuple(int(r) for r in relations[i::classes]) for i in range(classes))
    labels = _draw_labels(rng, classes, None)
    return Sequence(Mapping(members, labels), True, 0, 0)


def _random_clusters(rng: np.random.Generator) -> Sequence:
    classes = int(rng.integers(2, 7))
    free = _candidates(rng)
    members: list[tuple[int, ...]] = []
    for _ in range(classes):
        wanted = min(int(rng.geometric(0.5)), 4)  # 1: half of the classes, 2: a quarter, ...
        mine: list[int] = []
        for c in list(free):
            if len(mine) < wanted and not APART[c, mine].any():
                mine.append(c)
                free.remove(c)
        members.append(tuple(mine))
    labels = _draw_labels(rng, classes, members)
    return Sequence(
        Mapping(tuple(members), labels), False, int(rng.integers(len(_FORMAT_IDS))), int(rng.random() < 0.3)
    )


def _candidates(rng: np.random.Generator) -> list[int]:
    """Clusters in a random order; half of the time those of one attribute first, which are the harder to tell apart."""
    order = [int(c) for c in rng.permutation(len(LEXICON.clusters))]
    if rng.random() < 0.5:
        return order
    attribute = ATTRIBUTES[rng.integers(len(ATTRIBUTES) - 1)]  # the last one has relations
    own = {c for members in attribute.classes for c in members}
    return sorted(order, key=lambda c: c not in own)


def _draw_labels(rng: np.random.Generator, n: int, members: list[tuple[int, ...]] | None) -> tuple[int, ...]:
    """A label word each: an embedded task's own in any order, those of all embedded tasks, or any word."""
    kind = rng.random()
    pool = rng.permutation(len(LEXICON.labels))
    own = [a.labels for a in ATTRIBUTES if len(a.labels) == n]
    if kind < 0.3 and own:
        words = own[rng.integers(len(own))]
        first = rng.permutation([LEXICON.labels.index(word) for word in words])
        pool = np.concatenate([first, pool[~np.isin(pool, first)]])
    elif kind < 0.6:
        pool = np.concatenate([pool[pool < _OWN_LABELS], pool[pool >= _OWN_LABELS]])
    chosen: list[int] = []
    for i in range(n):
        forbidden = np.any(FORBIDDEN[list(members[i]) if members else []], axis=0)  # [labels]
        chosen.append(next(int(word) for word in pool if word not in chosen and not forbidden[word]))
    return tuple(chosen)


def write_batch(sequences: list[Sequence], length: int, rng: np.random.Generator) -> TokenBatch:
    """Examples of every sequence's task, joined and cut at ``length``."""
    n = -(-length // SHORTEST_EXAMPLE)
    label, member = _draw_examples([s.mapping for s in sequences], n, rng)
    words = np.array([[*s.mapping.labels, *[0] * (6 - len(s.mapping.labels))] for s in sequences])
    answers = LABEL_IDS[np.take_along_axis(words, label, axis=1)]  # [sequences, n]
    of_pairs = np.array([s.of_pairs for s in sequences])
    single, pair = np.flatnonzero(~of_pairs), np.flatnonzero(of_pairs)
    tokens: NDArray[np.int16] = np.zeros((len(sequences), length), dtype=np.int16)
    is_label = np.zeros((len(sequences), length), dtype=bool)
    for rows, write in ((single, _write_single), (pair, _write_pair)):
        if len(rows):
            prompts = write([sequences[i] for i in rows], member[rows], rng)
            tokens[rows], is_label[rows] = _join(prompts, answers[rows], length)
    return TokenBatch(tokens, is_label)


def _draw_examples(mappings: list[Mapping], n: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Classes [sequences, n], uniform over each task's, and a member of the class each [sequences, n]."""
    counts = np.array([len(m.classes) for m in mappings])
    label = (rng.random((len(mappings), n)) * counts[:, None]).astype(np.int64)
    sizes = np.array([[len(c) for c in m.classes] + [1] * (6 - len(m.classes)) for m in mappings])
    table = np.zeros((len(mappings), 6, int(sizes.max())), dtype=np.int64)
    for one, mapping in zip(table, mappings, strict=True):
        for row, members in zip(one, mapping.classes, strict=False):
            row[: len(members)] = members
    size = np.take_along_axis(sizes, label, axis=1)
    which = (rng.random(label.shape) * size).astype(np.int64)
    return label, table[np.arange(len(mappings))[:, None], label, which]


def _write_single(sequences: list[Sequence], member: Ids, rng: np.random.Generator) -> Ids:
    rows, n = member.shape
    style = np.repeat([s.style for s in sequences], n)
    words = _FORMAT_IDS[[s.format for s in sequences]]  # [rows, 2]
    text = write_sentences(member.ravel(), _distractors(sequences, n, rng), style, rng).reshape(rows, n, -1)
    before, after = (np.broadcast_to(words[:, None, i : i + 1], (rows, n, 1)) for i in (0, 1))
    return np.concatenate([before, text, after], axis=2)


def _distractors(sequences: list[Sequence], n: int, rng: np.random.Generator) -> Ids:
    """Noun clusters outside each sequence's task, one for every example [rows * n]."""
    chosen = np.empty((len(sequences), n), dtype=np.int64)
    for row, sequence in zip(chosen, sequences, strict=True):
        used = [c for members in sequence.mapping.classes for c in members]
        free = _NOUNS[~np.isin(_NOUNS, used)]
        row[:] = rng.choice(rng.choice(free, 4), n)
    return chosen.ravel()


def _write_pair(_sequences: list[Sequence], member: Ids, rng: np.random.Generator) -> Ids:
    rows, n = member.shape
    premise, hypothesis = (part.reshape(rows, n, -1) for part in write_pairs(member.ravel(), rng))
    middle, mark, after = (np.full((rows, n, 1), word) for word in (_QUESTION, _QUESTION_MARK, _ANSWER))
    return np.concatenate([premise, middle, hypothesis, mark, after], axis=2)


def _join(prompts: Ids, answers: Ids, length: int) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """prompts [rows, n, places] with empty places, answers [rows, n] -> tokens and label marks [rows, length]."""
    rows, n, places = prompts.shape
    ends = np.broadcast_to(EOS, (rows, n, 1))
    examples = np.concatenate([prompts, answers[:, :, None], ends], axis=2).reshape(rows, -1)
    marks = np.zeros((rows, n, places + 2), dtype=bool)
    marks[:, :, places] = True
    filled = examples >= 0
    where = np.cumsum(filled, axis=1)  # the first example's first token stands at 1, after BOS
    row, column = np.nonzero(filled & (where < length))
    tokens: NDArray[np.int16] = np.full((rows, length), BOS, dtype=np.int16)
    is_label = np.zeros((rows, length), dtype=bool)
    tokens[row, where[row, column]] = examples[row, column]
    is_label[row, where[row, column]] = marks.reshape(rows, -1)[row, column]
    return tokens, is_label
