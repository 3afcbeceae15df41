"""Training where memory is short: what is given up, and that no number changes by it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import checkpoint

from dualscope.descent import delta, trainable
from dualscope.descent import samples as memory_modes
from dualscope.learners import Bench
from dualscope.learners.gradient.descend import READ_TWICE, Descent
from dualscope.models.reading import footprint
from tests.descent.test_delta import assert_same, state
from tests.learners import oracle
from tests.learners.setting import tiny_bench

LR = 0.3


@pytest.fixture(params=[False, True], ids=["in place", "beside"])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delta, trainable):
        monkeypatch.setattr(module, "acts_beside", lambda model, slots: request.param)


def short_of_memory(bench: Bench, patch: pytest.MonkeyPatch, passes: int, forever: bool = False) -> list[int]:
    """The model runs out of memory at its ``passes``-th forward pass that is not checkpointed."""
    forward, calls = type(bench.model).forward, [0]

    def short(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        saves_memory = "forward" in self.blocks[0].__dict__
        calls[0] += not saves_memory
        if (calls[0] == passes and not saves_memory) or (forever and torch.is_grad_enabled()):
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, *args, **options)

    patch.setattr(type(bench.model), "forward", short)
    return calls


@pytest.mark.parametrize("family", ["gpt2", "llama", pytest.param("gpt_neox", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("learner", "options"),
    [("gd", {}), ("gd", {"full_batch": True}), ("lcgd", {}), ("lcgd-clipped", {"threshold": 0.5})],
)
@pytest.mark.usefixtures("beside")
def test_a_checkpointed_run_is_the_same(
    family: str, learner: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny_bench(family).learned(learner, LR, **options)
    bench = tiny_bench(family)
    before = state(bench.model)
    again = []
    with monkeypatch.context() as patch:

        def counted(*given: Any, **options: Any) -> Any:
            again.append(1)
            return checkpoint.checkpoint(*given, **options)

        patch.setattr(memory_modes, "checkpoint", counted)
        short_of_memory(bench, patch, passes=2)
        found = bench.learned(learner, LR, **options)
    assert again, "no block was checkpointed"
    assert found.notes == ("memory was short: activations were computed again in the backward pass",)
    assert plain.notes == ()
    assert plain.delta is not None
    assert found.delta is not None
    assert oracle.worst(found.delta, dict(plain.delta)) <= 1e-9
    torch.testing.assert_close(found.log.grad_norm, plain.log.grad_norm, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.trace.attn_out, plain.trace.attn_out, rtol=1e-9, atol=1e-9)
    assert_same(before, state(bench.model))


def test_what_does_not_fit_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny_bench("gpt2")
    with monkeypatch.context() as patch:
        short_of_memory(bench, patch, passes=-1, forever=True)
        with pytest.raises(torch.OutOfMemoryError):
            bench.learned("gd", LR)
    assert "forward" not in bench.model.blocks[0].__dict__


def test_the_fastest_manner_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny_bench("gpt2")

    def names(tangent: bool) -> Iterator[str]:
        for mode in memory_modes.memory_modes(bench.model, [], tangent):
            yield "recorded" if mode.recorded else "checkpointed" if mode.checkpointed else "plain"
        assert mode.last

    assert list(names(tangent=False)) == ["plain", "checkpointed"]
    assert list(names(tangent=True)) == ["plain"]
    monkeypatch.setattr(memory_modes, "is_graphable", lambda model, batches: True)
    assert list(names(tangent=False)) == ["recorded", "plain", "checkpointed"]
    assert list(names(tangent=True)) == ["recorded", "plain"]


def test_a_large_model_is_read_again_and_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny_bench("llama", dtype=torch.float32)
    small = bench.learned("gd", LR)
    monkeypatch.setattr(footprint, "TRAINED_TWICE", 100)
    other = tiny_bench("llama", dtype=torch.float32)
    large = other.learned("gd", LR)
    assert (small.again is None, small.notes) == (False, ())
    assert (large.again, large.notes) == (None, (READ_TWICE,))
    with monkeypatch.context() as patch:
        patch.setattr(Descent, "run", lambda *rest: pytest.fail("trained again"))
        found = other.reread(large)  # the change that is there, in another order of summation
    assert found is not None
    first = large.trace.attn_out[: len(found.trace)]
    torch.testing.assert_close(found.trace.attn_out, first, rtol=1e-3, atol=1e-4)
    assert tiny_bench("llama").learned("gd", LR).notes == ()  # float64 was never trained again
