"""Every word and its number: the lists of ``words`` as arrays, for the grammar and for the tokenizer."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from dualscope.tasks.synthetic.generated_words import ARBITRARY_LABELS, CLUSTERS, FORMATS, NEUTRAL, OPPOSITES, SPECIAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Words that the frames need beside the lists, and the label words of the embedded tasks.
GRAMMAR = (
    ". , ? the this that one some every all of in on by with from and but also is was were had it they we he she "
    "what which who where when how did work about not said"
)
TASK_LABELS = (
    "Negative Positive terrible bad neutral good great objective subjective World Sports Business Technology "
    "Abbreviation Entity Description Person Location Number True False Neither"
)


class Lexicon:
    """The vocabulary, in a fixed order, and the word lists as one padded table.

    >>> LEXICON.text(LEXICON.ids("the film was superb , moving ."))
    'the film was superb, <unk>.'
    """

    def __init__(self) -> None:
        self.clusters = tuple(CLUSTERS)
        self.parts = tuple(part for part, _ in CLUSTERS.values())
        self.neutral = tuple(NEUTRAL)
        self.labels = tuple(TASK_LABELS.split() + ARBITRARY_LABELS.split())
        self.opposites = tuple(tuple(pair.split("/")) for pair in OPPOSITES.split())
        lists = [words.split() for _, words in CLUSTERS.values()] + [words.split() for words in NEUTRAL.values()]
        content = [word for words in lists for word in words] + [word for pair in self.opposites for word in pair]
        repeated = [word for word, count in Counter(content + list(self.labels)).items() if count > 1]
        if repeated:
            raise ValueError(f"words in two lists: {', '.join(repeated)}")
        formats = [word for pair in FORMATS.values() for word in pair]
        # A dictionary keeps the order and drops the repetitions among the grammar's words.
        self.words = tuple(dict.fromkeys([*SPECIAL, *GRAMMAR.split(), *formats, *self.labels, *content]))
        self._number = {word: number for number, word in enumerate(self.words)}
        # [lists, longest]: clusters first, then the neutral lists
        self.sizes: NDArray[np.int64] = np.array([len(words) for words in lists])
        self.table: NDArray[np.int64] = np.zeros((len(lists), int(self.sizes.max())), dtype=np.int64)
        for row, words in zip(self.table, lists, strict=True):
            row[: len(words)] = [self.id(word) for word in words]

    def __len__(self) -> int:
        return len(self.words)

    def id(self, word: str) -> int:
        """The number of a word of the language."""
        return self._number[word]

    def ids(self, text: str) -> list[int]:
        """The numbers of words that are separated by spaces; 0 for an unknown word."""
        return [self._number.get(word, 0) for word in text.split()]

    def text(self, ids: Iterable[int]) -> str:
        """Words as a person writes them: no space before a mark, nothing for empty places."""
        text = " ".join(self.words[number] for number in ids if number >= 0)
        for mark in ".,?":
            text = text.replace(f" {mark}", mark)
        return text


LEXICON = Lexicon()
