"""How many worker processes suit a study on this machine, where nobody says. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dualscope.studies.execute.estimate import Shape

SMALL = 50_000_000  # parameters: below this, two threads of one process are slower than two processes
MOST = 8
SHARE = 0.25  # of the machine's memory, for all copies of the weights together


def suitable_jobs(models: Sequence[str], device: str = "auto") -> int:
    """A process a core for small models on a CPU; one where there is an accelerator, or a large model."""
    accelerator = sys.platform == "darwin" or any(Path("/dev").glob("nvidia[0-9]*"))
    if device != "cpu" and (device != "auto" or accelerator):
        return 1
    shapes = [Shape.of(model) for model in models]
    if any(shape is None or shape.parameters > SMALL for shape in shapes):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    largest = max((4 * shape.parameters for shape in shapes if shape), default=1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, MOST, int(SHARE * memory / largest)))
