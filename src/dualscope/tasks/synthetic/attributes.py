"""The embedded tasks as attributes: which clusters (or relations) make a class, and what the class is called."""

from dataclasses import dataclass

from dualscope.tasks.synthetic.lexicon import LEXICON
from dualscope.tasks.synthetic.pairs import RELATIONS
from dualscope.tasks.synthetic.sentences import QUESTION, STATEMENT


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
