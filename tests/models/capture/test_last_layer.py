"""Behind the last layer's keys and values one row of each query is computed, and it is the row of the whole pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from dualscope.models import Model
from dualscope.models.capture import last_layer
from dualscope.models.reading.trace import Trace
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model

WANT = frozenset({"exits", "mass", "attention", "heads", "layer_inputs", "query_vectors", "context_scores"})
SEVERAL = ((16,), (19, 16))
# In turn, grouped heads, side by side with attention, the residual stream added inside, windows, no MLP module (2).
FAMILIES = ["gpt2", "llama", "gpt_neox", "bloom", "gemma2", "opt", "xglm"]


def model_of(family: str) -> Model:
    return Model(*tiny_model(family, torch.float64))


@contextmanager
def all_rows() -> Iterator[None]:
    """The last layer as it would be without narrowing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualscope.models.capture.hooks.final_rows", lambda _model, _session: None)
        yield


def assert_alike(found: Trace, wanted: Trace) -> None:
    named = {f.name: getattr(wanted, f.name) for f in fields(wanted)} | wanted.extras
    for name, value in named.items():
        if isinstance(value, Tensor):
            own = found.extras[name] if name in found.extras else getattr(found, name)
            torch.testing.assert_close(own, value, rtol=1e-10, atol=1e-12, equal_nan=True, msg=name)


@pytest.mark.parametrize("answers", [None, SEVERAL], ids=["one token", "several"])
@pytest.mark.parametrize("context", [True, False], ids=["in-context", "zero-shot"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trace_is_that_of_all_rows(family: str, context: bool, answers: tuple[tuple[int, ...], ...] | None) -> None:
    model = model_of(family)
    lesson = random_lesson() if answers is None else random_lesson(answers=answers)

    def read() -> Trace:
        prefix = model.prefix(lesson.context) if context else None
        want = WANT if context else WANT - {"context_scores"}
        return model.read(lesson, prefix, want=want, batch_size=3)

    with all_rows():
        wanted = read()
    assert_alike(read(), wanted)


def rows_seen(model: Model, watch: nn.Module | None = None) -> set[int]:
    """How many rows of each sequence the MLP's last linear layer is fed in the last block."""
    seen: set[int] = set()
    mlp = next(iter(last_layer._position_wise(model)))
    linear = [module for module in mlp.modules() if getattr(module, "weight", None) is not None][-1]
    forward = linear.forward

    def look(inputs: Tensor) -> Tensor:
        seen.add(inputs.shape[1])
        out: Tensor = forward(inputs)
        return out

    handle = mlp.register_forward_hook(lambda *_: None) if watch is not None else None
    linear.forward = look
    try:
        model.read(random_lesson())
    finally:
        del linear.forward
        if handle is not None:
            handle.remove()
    return seen


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "bloom", "gemma2"])
def test_the_mlp_of_the_last_block_sees_one_row(family: str) -> None:
    assert rows_seen(model_of(family)) == {1}


def test_somebody_who_watches_the_mlp_sees_all_rows() -> None:
    model = model_of("gpt2")
    assert min(rows_seen(model, watch=model.blocks[-1])) > 1


def test_hooks_are_gone_afterwards() -> None:
    model = model_of("gpt2")
    model.read(random_lesson())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.hf.modules())
