"""What a generated example is about, read back from its text: the cluster of its words, or the relation of its pair.

Every content word stands in one list alone, and every sentence frame has a word of the example's own cluster; a pair of
sentences is in one relation alone. So a text says exactly which of the generator's members it was written for.
"""

import re
from collections.abc import Mapping
from string import Formatter

from dualscope.core.errors import InputError
from dualscope.tasks.synthetic.attributes import ATTRIBUTES, Attribute
from dualscope.tasks.synthetic.lexicon import LEXICON
from dualscope.tasks.synthetic.pairs import RELATIONS
from dualscope.tasks.task import Task

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
