"""Capture leaves the model as it found it, also after an error, and records by mask, not by value."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.capture import hooks as last_layer
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.trace import Trace
from tests.models.lessons import random_lesson
from tests.models.tiny import FAMILIES, WINDOW, tiny_model
from tests.models.unlisted import sink_model


def fingerprint(hf: Any) -> dict[str, object]:
    """Everything that a capture may touch."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "implementation": hf.config._attn_implementation,
        "own attributes": {name: sorted(module.__dict__) for name, module in hf.named_modules()},
        "hooks": [len(getattr(module, hook)) for module in hf.modules() for hook in hooks],
        "training": [module.training for module in hf.modules()],
        "gradients": [parameter.requires_grad for parameter in hf.parameters()],
        "dtype": torch.get_default_dtype(),
        "matmuls": torch.get_float32_matmul_precision(),
        "grad mode": torch.is_grad_enabled(),
    }


class Broken(RuntimeError):
    pass


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_restored_after_a_read_and_after_an_error(family: str, implementation: str) -> None:
    hf, tokenizer = tiny_model(family, torch.float64)
    if implementation == "sdpa" and not hf._supports_sdpa:
        pytest.skip("this architecture has eager attention only")
    hf.set_attn_implementation(implementation)
    hf.train()
    next(hf.parameters()).requires_grad_(False)
    model, lesson = Model(hf, tokenizer), random_lesson(queries=(3, 2))
    before = fingerprint(hf)
    prefix = model.prefix(lesson.context)
    model.read(lesson, prefix, want=frozenset({"exits", "layer_inputs"}))
    assert fingerprint(hf) == before

    def explode(*_: object) -> None:
        raise Broken

    handle = model.blocks[1].register_forward_pre_hook(explode)
    with_hook = fingerprint(hf)
    for attempt in (lambda: model.read(lesson, prefix), lambda: model.prefix(lesson.context)):
        with pytest.raises(Broken):
            attempt()
        assert fingerprint(hf) == with_hook
    handle.remove()
    assert fingerprint(hf) == before


def test_dropout_is_off_while_a_training_model_is_read() -> None:
    hf, tokenizer = tiny_model("gpt2", embd_pdrop=0.5, attn_pdrop=0.5, resid_pdrop=0.5)
    model, lesson = Model(hf.train(), tokenizer), random_lesson(queries=(3, 2))
    assert torch.equal(model.read(lesson).attn_out, model.read(lesson).attn_out)
    assert hf.training


def test_scores_leave_out_what_the_window_hides_and_nothing_else() -> None:
    hf, tokenizer = tiny_model("mistral", torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson(queries=(12, 3))
    for prefix in (None, model.prefix(lesson.context)):
        hidden = model.read(lesson, prefix).attn_scores.isnan()
        assert hidden[0, :, :, : 12 - WINDOW].all()
        assert not hidden[0, :, :, 12 - WINDOW :].any()
        assert hidden[1, :, :, : 12 - 3].all()  # before its first token
        assert not hidden[1, :, :, 12 - 3 :].any()


def test_very_negative_scores_are_kept() -> None:
    """A score of -1e30, or the smallest finite number, is a score: only the mask says what is left out."""
    for size in (1e30, 1e19):
        hf, tokenizer = tiny_model("gpt2")
        with torch.no_grad():
            for block in hf.transformer.h:
                block.attn.c_attn.weight[:, :64] *= size**0.5
        model, lesson = Model(hf, tokenizer), random_lesson(queries=(6, 3))
        trace = model.read(lesson, model.prefix(lesson.context))
        scores = trace.attn_scores
        assert scores[0].min() < -size / 1e3
        assert scores[0].isfinite().all()
        assert scores[1, :, :, 3:].isfinite().all()
        assert scores[1, :, :, :3].isnan().all()
        assert trace.attn_out.isfinite().all()


def test_a_bypassed_interface_is_an_error_not_a_wrong_number() -> None:
    from dataclasses import replace

    hf, tokenizer = tiny_model("bloom")
    model, lesson = Model(hf, tokenizer), random_lesson(queries=(3,))
    model.family = replace(model.family, adapter=None)
    with pytest.raises(InputError, match="0 attention calls were seen for 3 layers"):
        model.prefix(lesson.context)


def test_padding_masks_are_not_lost() -> None:
    """A batch that is padded (nothing of ours is) still sees what transformers' mask lets it see."""
    hf, tokenizer = tiny_model("llama")
    model = Model(hf, tokenizer)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10], [3, 3, 7, 8, 9, 10]])
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        plain = hf(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        with capturing(model, Session()):
            captured = hf(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    assert (captured - plain)[mask.bool()].abs().max() < 5e-5


def test_the_gradient_passes_through_the_sinks() -> None:
    model, tokens = Model(*sink_model()), torch.tensor([[1, 7, 9, 4, 11, 6, 8, 5]])
    named = model.hf.named_parameters()
    weights = [weight for name, weight in named if "k_proj.w" in name or "v_proj.w" in name]
    expected = torch.autograd.grad(model.hf(tokens).logits[0, -1, 5], weights)
    with capturing(model, Session()):
        found = torch.autograd.grad(model.hf(tokens).logits[0, -1, 5], weights)
    assert len(weights) == 6
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-4


WANT = frozenset({"exits", "mass", "attention", "heads", "layer_inputs", "query_vectors", "context_scores"})
SEVERAL = ((16,), (19, 16))
# In turn, grouped heads, side by side with attention, the residual stream added inside, windows, no MLP module (2).
NARROWED = ["gpt2", "llama", "gpt_neox", "bloom", "gemma2", "opt", "xglm"]


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
@pytest.mark.parametrize("family", NARROWED)
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
