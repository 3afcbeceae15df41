"""Steps recorded once as CUDA graphs and then replayed: descent's on single demonstrations, and any other call.

A step of descent on one demonstration is a few thousand small kernels: on a large GPU launching them takes several
times longer than running them. Demonstrations are filled up at their end to one width, where nothing is predicted and
nothing before can see, so that one recording serves them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from dualscope.descent.samples import Filled, Sample

if TYPE_CHECKING:
    from dualscope.descent.dual_records import Recorder
    from dualscope.descent.loop import Step, StepState, Taken

R = TypeVar("R")


class CudaRecording(Generic[R]):
    """A call as a CUDA graph. What it gives stays in place: each replay puts new numbers there.

    It must read nothing but what stays in place too, and must not wait for the device. ``errors`` is whose calls may
    spoil a recording: any thread's (``global``), or this one's alone (``thread_local``).
    """

    def __init__(self, call: Callable[[], R], errors: str = "global") -> None:
        self.graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings(), torch.cuda.graph(self.graph, capture_error_mode=errors):
            # It fears for gradients that are added up in leaves; ours are asked for and handed on.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            self.given = call()

    def replay(self) -> R:
        self.graph.replay()
        return self.given


def aside(call: Callable[[], R], stream: torch.cuda.Stream | None = None) -> R:
    """A call as it is, on a stream of its own, as recordings are: at their first use libraries set themselves up, which
    cannot be recorded.
    """
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        given = call()
    torch.cuda.current_stream().wait_stream(stream)
    return given


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
    graph: CudaRecording[Taken] | None = None
    noted: Recorder | None = None  # what it notes of the sample
    warm: bool = False

    def take(self, state: StepState, sample: Sample) -> Taken:
        self.sample.become(sample)
        if not self.warm:
            self.warm = True
            noted = state.recorder.apart()
            taken = aside(lambda: self.step(replace(state, recorder=noted), [self.sample]))
            state.recorder.take_over(noted, sample)
            return taken
        if self.graph is None:
            self.noted = state.recorder.apart()
            recorded = replace(state, recorder=self.noted)
            self.graph = CudaRecording(lambda: self.step(recorded, [self.sample]))
        assert self.noted is not None
        taken = self.graph.replay()
        state.recorder.take_over(self.noted, sample)
        return taken.copied()
