"""What people call learners and metrics, as these say it of themselves. Identifiers stay for files and commands."""

from __future__ import annotations

from dualscope.core.description import ELSEWHERE, Description
from dualscope.core.spec import LearnerSpec


def described(learner: str) -> Description:
    """What a learner says of itself; of a plugin's that is not loaded, what a run that was opened says."""
    from dualscope.learners import LEARNERS

    if learner in LEARNERS:
        return LEARNERS[learner].description()
    return ELSEWHERE.get(learner) or Description(learner)


def metric_title(name: str) -> str:
    """A metric in words; one that is not here is called by its name."""
    from dualscope.metrics import METRICS

    return METRICS[name].title if name in METRICS and METRICS[name].title else name


def learner_title(learning: LearnerSpec) -> str:
    """A learner in words, with its options and control.

    >>> learner_title(LearnerSpec.of("gd", {"epochs": 3})), learner_title(LearnerSpec("mine", "random-labels"))
    ('gradient descent (epochs=3)', 'mine with random labels')
    """
    from dualscope.learners import COMBINATORS

    options = ", ".join(f"{key}={value}" for key, value in sorted(learning.settings.items()))
    title = described(learning.name).title + (f" ({options})" if options else "")
    return f"{title} with {COMBINATORS[learning.control].title}" if learning.control else title
