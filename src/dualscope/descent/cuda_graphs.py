"""Steps recorded once as CUDA graphs and then replayed.

A step on one demonstration is a few thousand small kernels: on a large GPU launching them takes several times longer
than running them. Demonstrations are filled up at their end to one width, where nothing is predicted and nothing before
can see, so that one recording serves them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dualscope.descent.samples import Filled, Sample

if TYPE_CHECKING:
    from dualscope.descent.dual_records import Recorder
    from dualscope.descent.loop import Step, StepState, Taken

FEWEST = 4  # steps of one width that are worth a recording
COMMON = 128  # up to here all demonstrations are filled up to the longest; beyond, to a power of two


def replayed(step: Step, batches: Sequence[Sequence[Sample]], epochs: int) -> Step:
    """The same step, recorded at the second demonstration of a width and replayed from then on."""
    widths = [batch[0].width for batch in batches]
    longest = max(widths)

    def width_of(sample: Sample) -> int:
        if longest <= COMMON:
            return -(-longest // 16) * 16
        return max(COMMON, 1 << (sample.width - 1).bit_length())

    counts: dict[int, int] = {}
    for batch in batches:
        counts[width_of(batch[0])] = counts.get(width_of(batch[0]), 0) + epochs
    recordings: dict[int, Recording] = {}

    def take(state: StepState, batch: Sequence[Sample]) -> Taken:
        width = width_of(batch[0])
        if counts[width] < FEWEST:
            return step(state, batch)
        if width not in recordings:
            recordings[width] = Recording(step, batch[0].filled(width))
        return recordings[width].take(state, batch[0])

    return take


@dataclass
class Recording:
    step: Step
    sample: Filled  # whose tensors the recording reads
    graph: torch.cuda.CUDAGraph | None = None
    taken: Taken | None = None  # whose tensors it writes
    noted: Recorder | None = None  # and what it notes of the sample
    warm: bool = False

    def take(self, state: StepState, sample: Sample) -> Taken:
        self.sample.become(sample)
        if not self.warm:  # libraries set themselves up at the first use, which cannot be recorded
            self.warm = True
            noted = state.recorder.apart()
            taken = self._aside(replace(state, recorder=noted))
            state.recorder.take_over(noted, sample)
            return taken
        if self.graph is None:
            self._record(state)
        assert self.graph is not None
        assert self.taken is not None
        assert self.noted is not None
        self.graph.replay()
        state.recorder.take_over(self.noted, sample)
        return self.taken.copied()

    def _record(self, state: StepState) -> None:
        self.noted, self.graph = state.recorder.apart(), torch.cuda.CUDAGraph()
        with warnings.catch_warnings(), torch.cuda.graph(self.graph):
            # It fears for gradients that are added up in leaves; ours are asked for and handed on.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            self.taken = self.step(replace(state, recorder=self.noted), [self.sample])

    def _aside(self, state: StepState) -> Taken:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            taken = self.step(state, [self.sample])
        torch.cuda.current_stream().wait_stream(stream)
        return taken
