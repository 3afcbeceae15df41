"""One colour a learner and one mark a variant, the same in every chart; safe for colour-blind readers.

A colour is a name; the page's style sheet has it twice, for light and for dark.
"""

from dualscope.core.learning import Learning

COLOURS = {
    "in-context": "@green",
    "zero-shot": "@grey",
    "gd": "@blue",
    "lcgd": "@vermilion",
    "lcgd-clipped": "@orange",
    "lcgd-matched": "@purple",
    "gd-matched": "@sky",
    "gd-linearized": "@sky",
    "gd-all": "@navy",
    "probe": "@olive",
    "null-context": "@olive",
    "zero-shot-offset": "@olive",
}
SPARE = ("@orange", "@purple", "@sky", "@olive", "@navy")
PUBLISHED = "@purple"
SYMBOLS = {
    "trained": "circle",
    "untrained": "circle-open",
    "trained-embeddings": "diamond-open",
    "shuffled": "square-open",
}
DASHES = {"trained": "solid", "untrained": "dot", "trained-embeddings": "dash", "shuffled": "dashdot"}
OTHERS = ("square", "triangle-up", "x", "star", "hexagon", "cross")


def colour(learning: Learning) -> str:
    """The same for every chart; a learner of a plugin gets one by its name, a random update is nobody's.

    >>> colour(Learning("gd")), colour(Learning.of("gd", {"layers": [1]})), colour(Learning("mine")) in SPARE
    ('@blue', '@blue', True)
    """
    if learning.control == "random-update":
        return "@grey"
    return COLOURS.get(learning.name) or SPARE[sum(learning.name.encode()) % len(SPARE)]
