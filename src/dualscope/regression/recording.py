"""A training step recorded as a CUDA graph: a small transformer's kernels take longer to launch than to run."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Inputs = tuple[Tensor, ...]
WARM = 3  # steps before a recording: libraries, compilers and the optimiser set themselves up in them


class RecordedSteps:
    """``step(*inputs) -> losses`` as it is, or, after a few calls with inputs of one shape, its recording.

    A step must read nothing but its inputs and what stays in place (weights, the optimiser's state, a rate that is
    a tensor), and must not wait for the device.
    """

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self.step = step
        self._refused = False
        self._stream: torch.cuda.Stream | None = None
        self._seen: dict[tuple[torch.Size, ...], int] = {}
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        shapes = tuple(one.shape for one in inputs)
        if shapes not in self._recordings:
            self._seen[shapes] = self._seen.get(shapes, 0) + 1
            if self._seen[shapes] <= WARM:
                return self._aside(*inputs)
            if self._refused:
                return self._aside(*inputs)
            try:
                self._recordings[shapes] = _Recording(self.step, inputs)
            except RuntimeError as error:
                warnings.warn(f"steps are not recorded, and take longer: {error}", stacklevel=2)
                self._refused = True
                return self._aside(*inputs)
        return self._recordings[shapes](*inputs)

    def _aside(self, *inputs: Tensor) -> Tensor:
        """On a stream of its own, as recordings are; one for all steps, since each stream has memory of its own."""
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return losses


class _Recording:
    def __init__(self, step: Callable[..., Tensor], inputs: Inputs) -> None:
        self.inputs = tuple(one.clone() for one in inputs)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.losses = step(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        for mine, new in zip(self.inputs, inputs, strict=True):
            mine.copy_(new)
        self.graph.replay()
        return self.losses
