"""One colour a learner and one mark a variant, the same in every chart; safe for colour-blind readers.

A colour is a name; the page's style sheet has it twice, for light and for dark.
"""

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
    "random-update": "@grey",
    "null-context": "@olive",
    "zero-shot-offset": "@olive",
    "in-context-redraw": "@green",
    "in-context-reorder": "@green",
    "gd-redraw": "@sky",
    "gd-reorder": "@sky",
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


def colour(learner: str) -> str:
    """The same for every chart; a learner of a plugin gets one by its name.

    >>> colour("gd"), colour("gd[layers=(1,)]"), colour("mine") in SPARE
    ('@blue', '@blue', True)
    """
    name = learner.partition("[")[0].partition(" ")[0]
    return COLOURS.get(name) or SPARE[sum(name.encode()) % len(SPARE)]
