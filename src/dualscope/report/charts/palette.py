"""One colour a learner and one mark a variant, the same in every chart; safe for colour-blind readers."""

from collections.abc import Iterable

from dualscope.core.registry import COLOURS, MARKS, Colour
from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import described

SPARE: tuple[Colour, ...] = ("@orange", "@purple", "@sky", "@olive", "@navy")
PUBLISHED = "@purple"
SYMBOLS = {
    "trained": "circle",
    "untrained": "circle-open",
    "trained-embeddings": "diamond-open",
    "shuffled": "square-open",
}
DASHES = {"trained": "solid", "untrained": "dot", "trained-embeddings": "dash", "shuffled": "dashdot"}
OTHERS = (
    "square", "triangle-up", "x", "star", "hexagon", "cross", "triangle-down", "pentagon", "triangle-left",
    "triangle-right",
)  # fmt: skip
GREY: Colour = "@grey"
DIVERGING: tuple[tuple[float, str], ...] = ((0.0, "@vermilion"), (0.5, "@paper"), (1.0, "@blue"))
"""Of a heat map: from negative over zero to positive."""


def colour(learning: LearnerSpec) -> Colour:
    """A learner's own colour, or one of those that no learner has of its own; a random update is grey.

    >>> colour(LearnerSpec("gd")), colour(LearnerSpec("mine")) in SPARE
    ('@blue', True)
    """
    if learning.control == "random-update":
        return GREY
    return described(learning.name).colour or SPARE[sum(learning.name.encode()) % len(SPARE)]


class Palette:
    """A colour and a mark for every label of a page, the same in all charts: two options of one learner differ in both.

    >>> palette = Palette([LearnerSpec("gd"), LearnerSpec.of("gd", {"epochs": 3}), LearnerSpec("lcgd")])
    >>> palette.colour("gd"), palette.mark("gd"), palette.colour("lcgd")
    ('@blue', 'circle', '@vermilion')
    >>> palette.colour("gd[epochs=3]"), palette.mark("gd[epochs=3]")
    ('@orange', 'square')
    """

    def __init__(self, learnings: Iterable[LearnerSpec]) -> None:
        by_label = {learning.label: learning for learning in learnings}
        # Plain ones first: they keep the colour that readers know.
        order = sorted(by_label.values(), key=lambda who: (who.options != "{}", who.control is not None, who.label))
        wanted = {colour(learning) for learning in order if learning.options == "{}"}
        every = list(dict.fromkeys(name for name in (*SPARE, *COLOURS) if name != GREY))
        free = [name for name in every if name not in wanted]
        self._styles: dict[str, tuple[str, str]] = {}
        twins: dict[str, int] = {}
        for learning in order:
            twin = twins.get(learning.name, 0)
            shade = colour(learning)
            if learning.control is None:
                twins[learning.name] = twin + 1
                if shade in {taken for taken, _ in self._styles.values()}:
                    shade = free.pop(0) if free else every[twin % len(every)]
            mark = described(learning.name).mark if twin == 0 else None
            self._styles[learning.label] = (shade, mark or MARKS[twin % len(MARKS)])

    def colour(self, label: str) -> str:
        """What is no learner of the page is grey."""
        return self._styles.get(label, (GREY, MARKS[0]))[0]

    def mark(self, label: str) -> str:
        return self._styles.get(label, (GREY, MARKS[0]))[1]

    def symbol(self, label: str, variant: str = "trained") -> str:
        """Filled on the trained model; hollow on another variant, which has its own shape where the label has none."""
        mark = self.mark(label)
        if variant == "trained":
            return mark
        return SYMBOLS[variant] if mark == MARKS[0] else f"{mark}-open"
