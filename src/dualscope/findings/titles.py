"""What people call learners and metrics. Identifiers stay beside them, for files and commands."""

from __future__ import annotations

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Control

LEARNERS = {
    "zero-shot": "no demonstrations",
    "in-context": "in-context learning",
    "gd": "gradient descent",
    "gd-all": "gradient descent on all weights",
    "gd-matched": "gradient descent with layer-causal steps' sizes",
    "gd-linearized": "linearised gradient descent",
    "gd-tuned": "gradient descent at its best",
    "lcgd": "layer-causal gradient descent",
    "lcgd-clipped": "layer-causal gradient descent, clipped",
    "lcgd-matched": "layer-causal gradient descent with plain steps' sizes",
    "probe": "a linear probe",
    "kernel": "a kernel over the demonstrations",
    "task-vector": "a task vector",
    "function-vector": "a function vector",
    "null-context": "a context that teaches nothing",
    "zero-shot-offset": "the query moved to its position in context",
    "dilution": "attention diluted as the context dilutes it",
}
CONTROLS: dict[Control, str] = {
    "redraw": "other demonstrations",
    "reorder": "another order",
    "random-labels": "random labels",
    "other-task": "another task's demonstrations",
    "random-update": "a random change of the same size",
    "places": "its labels in the same places behind other inputs",
}
METRICS = {
    "sim_aou": "Attention outputs",
    "sim_aou_norm": "Attention outputs, scaled first",
    "sim_aou_centered": "Attention outputs, less the shared drift",
    "sim_aou_direct": "Attention outputs, own layer only",
    "sim_aou_orthogonal": "Attention outputs, beyond dilution",
    "sim_am": "Attention maps",
    "sim_am_delta": "Changes of attention maps",
    "rec2ftp": "Newly right together",
    "jaccard": "Changed together",
    "jaccard_correct": "Changed together, rightly",
    "jaccard_incorrect": "Changed together, wrongly",
    "jaccard_same": "Changed to the same label",
    "jaccard_corrected": "Changed together, above chance",
    "label_change_correlation": "Label probabilities move together",
    "accuracy": "Accuracy",
    "explained": "Explained of the predictions",
}


def metric_title(name: str) -> str:
    """A metric in words; one of a plugin is called by its name."""
    return METRICS.get(name, name)


def learner_title(learning: LearnerSpec) -> str:
    """A learner in words, with its options and control.

    >>> learner_title(LearnerSpec.of("gd", {"epochs": 3})), learner_title(LearnerSpec("mine", "random-labels"))
    ('gradient descent (epochs=3)', 'mine with random labels')
    """
    options = ", ".join(f"{key}={value}" for key, value in sorted(learning.settings.items()))
    title = LEARNERS.get(learning.name, learning.name) + (f" ({options})" if options else "")
    return f"{title} with {CONTROLS[learning.control]}" if learning.control else title
