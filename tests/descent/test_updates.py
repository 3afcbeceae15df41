"""What a GPU does differently, checked without one where that is possible: changes beside the weights, demonstrations
that are filled up to one width, steps that are replayed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.descent import cuda_graphs, delta, samples, trainable
from dualscope.descent.loop import Step, StepState, Taken
from dualscope.descent.samples import Filled, Sample
from dualscope.learners import Bench
from dualscope.learners.gradient import descend
from dualscope.learners.learner import Learned
from dualscope.models import Model
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, wrapped

LR = 0.3
WATCHED = frozenset({"kendall", "dual"})


@pytest.fixture
def always_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delta, trainable):
        monkeypatch.setattr(module, "acts_beside", lambda model, slots: True)


@pytest.fixture
def always_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is taken on a filled-up sample, as a replayed one is."""

    def filled_up(step: Step, batches: Sequence[Sequence[Sample]], epochs: int) -> Step:
        room: list[Filled] = []

        def take(state: StepState, batch: Sequence[Sample]) -> Taken:
            room.append(room[-1] if room else batch[0].filled(64))
            room[-1].become(batch[0])
            noted = state.recorder.apart()
            taken = step(replace(state, recorder=noted), [room[-1]])
            state.recorder.take_over(noted, batch[0])
            return taken

        return take

    monkeypatch.setattr(samples, "is_graphable", lambda *_: True)
    monkeypatch.setattr(descend, "replayed", filled_up)


@pytest.mark.parametrize("family", [*oracle.FAMILIES, "gpt_neox", "phi3"])
@pytest.mark.parametrize("learner", ["gd", "lcgd"])
@pytest.mark.usefixtures("always_beside")
def test_beside_is_the_same_as_in_place(family: str, learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = tiny_bench(family).learned(learner, LR)
    with monkeypatch.context() as patch:
        for module in (delta, trainable):
            patch.setattr(module, "acts_beside", lambda model, slots: False)
        inside = tiny_bench(family).learned(learner, LR)
    assert aside.delta is not None
    assert inside.delta is not None
    assert oracle.worst(aside.delta, dict(inside.delta)) <= 1e-9
    torch.testing.assert_close(aside.trace.attn_out, inside.trace.attn_out, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(aside.log.update_norm, inside.log.update_norm, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("always_beside")
def test_applied_beside() -> None:
    bench = tiny_bench("gpt2")
    learned = bench.learned("gd", LR)
    assert learned.delta is not None
    with learned.delta.applied(bench.model):
        again = bench.model.read(bench.lesson)
    assert torch.equal(again.attn_out, learned.trace.attn_out)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("learner", "options"),
    [
        ("gd", {}),
        ("gd", {"loss": "label", "epochs": 2}),
        ("lcgd", {}),
        ("lcgd", {"space": "labels"}),
        ("lcgd", {"readout": "attention", "schedule": "sequential"}),
        ("lcgd", {"granularity": "token", "layers": (1,)}),
        ("lcgd-matched", {"epochs": 2}),
        ("lcgd-clipped", {"threshold": 0.5}),
        ("gd-linearized", {}),
    ],
)
@pytest.mark.usefixtures("always_filled", "always_beside")
def test_filling_up_changes_nothing(
    family: str, learner: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = tiny_bench(family, want=WATCHED).learned(learner, LR, **options)
    with monkeypatch.context() as patch:
        patch.setattr(samples, "is_graphable", lambda *_: False)
        plain = tiny_bench(family, want=WATCHED).learned(learner, LR, **options)
    assert_same_training(filled, plain)


def assert_same_training(one: Learned, other: Learned) -> None:
    """The change, how it went, and what the demonstrations' tokens left behind."""
    assert one.delta is not None
    assert other.delta is not None
    assert oracle.worst(one.delta.to("cpu"), dict(other.delta.to("cpu"))) <= 1e-9
    torch.testing.assert_close(one.log.grad_norm, other.log.grad_norm, rtol=1e-9, atol=1e-12)
    assert {"queries", "inputs", "dual_inputs", "errors_key", "errors_value"} <= one.log.records.keys()
    torch.testing.assert_close(one.log.records, other.log.records, rtol=1e-8, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.parametrize("family", ["gpt2", "llama", "xglm", "gemma2", "bloom"])
@pytest.mark.parametrize(("learner", "trainings"), [("gd", 1), ("lcgd", 1), ("lcgd-matched", 2), ("gd-linearized", 1)])
def test_replayed_on_a_gpu(family: str, learner: str, trainings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One recording serves all demonstrations of a training, and gives what the device gives step by step."""
    recorded = []
    monkeypatch.setattr(cuda_graphs, "FEWEST", 2)
    take = cuda_graphs.Recording.take

    def noted(self: cuda_graphs.Recording, *given: Any) -> Any:
        recorded.append(self)
        return take(self, *given)

    monkeypatch.setattr(cuda_graphs.Recording, "take", noted)
    model = wrapped(family)
    lesson = tiny_lesson(model)
    model.hf.cuda()
    model = Model(model.hf, model.tokenizer)
    replayed = Bench(model, lesson, want=WATCHED).learned(learner, LR)
    monkeypatch.setattr(samples, "is_graphable", lambda *_: False)
    plain = Bench(model, lesson, want=WATCHED).learned(learner, LR)
    assert len({id(r) for r in recorded}) == trainings
    assert all(recording.graph is not None for recording in recorded)
    assert_same_training(replayed, plain)
    torch.testing.assert_close(replayed.trace.attn_out, plain.trace.attn_out, rtol=1e-8, atol=1e-8)
