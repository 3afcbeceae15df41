"""The generators that the catalog's embedded tasks name: rows of text with a class."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter

import numpy as np

from dualscope.core.errors import InputError
from dualscope.tasks.synthetic.generated_words import LEXICON
from dualscope.tasks.synthetic.sentences import QUESTION, RELATIONS, STATEMENT, Ids, write_pairs, write_sentences
from dualscope.tasks.task import Task


@dataclass(frozen=True)
class Attribute:
    """What an embedded task asks about.

    ``classes`` holds, for each class, the numbers of its clusters (of its relations, for pairs); ``known`` those of
    them that go with the canonical label word in training. The others give a class words, or relations, of which the
    label has to be learned from demonstrations.
    """

    name: str
    labels: tuple[str, ...]
    classes: tuple[tuple[int, ...], ...]
    known: tuple[tuple[int, ...], ...]
    format: str  # a key of ``words.FORMATS``; "pair" for pairs of sentences
    style: int = STATEMENT

    @property
    def of_pairs(self) -> bool:
        return self.format == "pair"


def _attribute(
    name: str, classes: dict[str, str], format: str, style: int = STATEMENT, of: tuple[str, ...] = LEXICON.clusters
) -> Attribute:
    """``classes``: label word -> names, the known ones marked by a star."""
    numbers = tuple(tuple(of.index(one.rstrip("*")) for one in names.split()) for names in classes.values())
    known = tuple(tuple(of.index(one[:-1]) for one in names.split() if one.endswith("*")) for names in classes.values())
    return Attribute(name, tuple(classes), numbers, known, format, style)


ATTRIBUTES: tuple[Attribute, ...] = (
    _attribute(
        "sst2",
        {"Negative": "terrible-1* terrible-2 bad-1* bad-2", "Positive": "good-1* good-2 great-1* great-2"},
        "sentence",
    ),
    _attribute(
        "sst5",
        {level: f"{level}-1* {level}-2" for level in ("terrible", "bad", "neutral", "good", "great")},
        "sentence",
    ),
    _attribute("subj", {kind: f"{kind}-1* {kind}-2" for kind in ("objective", "subjective")}, "input"),
    _attribute(
        "agnews",
        {topic: f"{topic.lower()}-1* {topic.lower()}-2" for topic in ("World", "Sports", "Business", "Technology")},
        "article",
    ),
    _attribute(
        "trec",
        {
            kind: f"{kind.lower()}-1* {kind.lower()}-2"
            for kind in ("Abbreviation", "Entity", "Description", "Person", "Location", "Number")
        },
        "question",
        QUESTION,
    ),
    _attribute(
        "cb",
        {"True": "same* not-opposite", "False": "opposite* not-same", "Neither": "unrelated* not-unrelated"},
        "pair",
        of=RELATIONS,
    ),
)


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

    >>> from dualscope.tasks.synthetic.embedded_tasks import ATTRIBUTES
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


# What a generated example is about, read back from its text: the cluster of its words, or the relation of its pair.
#
# Every content word stands in one list alone, and every sentence frame has a word of the example's own cluster; a
# pair of sentences is in one relation alone. So a text says exactly which of the generator's members it was written
# for.


_CLUSTER_OF = {
    LEXICON.words[word]: cluster
    for cluster in range(len(LEXICON.clusters))
    for word in LEXICON.table[cluster, : LEXICON.sizes[cluster]]
}
_OPPOSITE_OF = {word: pair[1 - side] for pair in LEXICON.opposites for side, word in enumerate(pair)}


def attribute_of(task: Task) -> Attribute | None:
    """What an embedded task asks about; None of a task that no generator of ours has made."""
    source = task.config.source
    name = source.generator.name if source is not None and source.generator is not None else ""
    return next((one for one in ATTRIBUTES if name == f"embedded-{one.name}"), None)


def members_of(attribute: Attribute) -> tuple[int, ...]:
    """The numbers of all clusters (or relations) that an attribute's classes have."""
    return tuple(member for members in attribute.classes for member in members)


def member_of(attribute: Attribute, fields: Mapping[str, str]) -> int | None:
    """The number of the cluster (or relation) that a text was written for; None where it is none of the attribute's.

    >>> sst2 = ATTRIBUTES[0]
    >>> LEXICON.clusters[member_of(sst2, {"text": "the film was very superb and rather dazzling."})]
    'great-1'
    >>> member_of(sst2, {"text": "the film was long."}) is None
    True
    """
    found = _relation(fields) if attribute.of_pairs else _cluster(attribute, fields)
    return found if found in members_of(attribute) else None


def fields_in(text: str, template: str) -> dict[str, str] | None:
    """A template's fields, read back from a text that holds the filled template; None where it does not.

    >>> fields_in("<bos> Sentence: it was fine . Label:", "Sentence: {text} Label:")
    {'text': 'it was fine .'}
    """
    pattern = ""
    for literal, field, _, _ in Formatter().parse(template):
        pattern += r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", literal))) + r"\s*"
        pattern += rf"(?P<{field}>.+?)\s*" if field else ""
    found = re.search(pattern, text, re.DOTALL)
    return None if found is None else found.groupdict()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _cluster(attribute: Attribute, fields: Mapping[str, str]) -> int | None:
    own = set(members_of(attribute))
    found = {_CLUSTER_OF[word] for word in _words(fields.get("text", "")) if word in _CLUSTER_OF} & own
    if len(found) > 1:
        names = ", ".join(LEXICON.clusters[cluster] for cluster in sorted(found))
        raise InputError(f"'{fields['text']}' was not written by the generator: it has words of {names}")
    return next(iter(found), None)


def _relation(fields: Mapping[str, str]) -> int | None:
    premise, hypothesis = _words(fields.get("premise", "")), _words(fields.get("hypothesis", ""))
    said = next((word for word in hypothesis if word in _OPPOSITE_OF), None)
    if said is None:
        return None
    name = "same" if said in premise else "opposite" if _OPPOSITE_OF[said] in premise else "unrelated"
    return RELATIONS.index(f"not-{name}" if "not" in hypothesis else name)
