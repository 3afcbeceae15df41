"""How steps are recorded, on a pretended device that notes every call: real recordings need a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.descent import cuda_graphs
from dualscope.regression.training import WARM, RecordedSteps


class Device:
    """What torch.cuda is asked for, in order; a replay computes anew from what the recorded call reads."""

    def __init__(self, patch: pytest.MonkeyPatch, refuses: bool = False) -> None:
        self.told: list[str] = []
        self.refuses = refuses
        for name, instead in {
            "CUDAGraph": lambda: self,
            "graph": self.recording,
            "Stream": lambda: self,
            "stream": self.streaming,
            "current_stream": lambda: self,
            "synchronize": lambda: None,
        }.items():
            patch.setattr(torch.cuda, name, instead)

    @contextmanager
    def recording(self, graph: Any, capture_error_mode: str) -> Iterator[None]:
        if self.refuses:
            raise RuntimeError("no room for a graph")
        self.told.append(f"record {capture_error_mode}")
        yield

    @contextmanager
    def streaming(self, _stream: Any) -> Iterator[None]:
        self.told.append("aside")
        yield

    def wait_stream(self, _stream: Any) -> None:
        pass

    def replay(self) -> None:
        self.told.append("replay")


def test_a_recording_gives_what_its_call_gave_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    device, given = Device(monkeypatch), torch.zeros(2)
    recording = cuda_graphs.CudaRecording(lambda: given)
    assert recording.replay() is given
    assert cuda_graphs.aside(lambda: given) is given
    assert device.told == ["record global", "replay", "aside"]


def test_regression_records_after_a_few_steps_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    device, read = Device(monkeypatch), list[Tensor]()

    def step(inputs: Tensor) -> Tensor:
        read.append(inputs)
        return inputs.sum()

    take = RecordedSteps(step)
    for number in range(WARM + 2):
        take(torch.full((3,), float(number)))
    assert device.told == ["aside"] * WARM + ["record thread_local", "replay", "replay"]
    assert read[-1].tolist() == [WARM + 1.0] * 3  # a replay reads the new inputs where the recording reads
    take(torch.ones(4))
    assert device.told[-1] == "aside"  # another shape begins anew


def test_what_cannot_be_recorded_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, refuses=True)
    take = RecordedSteps(lambda inputs: inputs + 1)
    with pytest.warns(UserWarning, match="steps are not recorded, and take longer: no room for a graph"):
        found = [take(torch.zeros(1)).item() for _ in range(WARM + 2)]
    assert found == [1.0] * (WARM + 2)
    assert device.told == ["aside"] * (WARM + 2)
