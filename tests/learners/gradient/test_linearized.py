"""Gradient descent in the tangent space: weights against an explicit Jacobian, the trace against differences."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jvp
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from dualscope.descent.samples import samples
from dualscope.descent.trainable import weights_for
from dualscope.learners import Bench, Delta
from dualscope.learners.gradient.linearized import forward_mode, two_backward_passes
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.trace import Trace
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, wrapped
from tests.models import oracle as reading

LR = 0.5


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_one_step_from_the_start_is_plain_gd(family: str) -> None:
    both: tuple[dict[str, Any], ...] = ({"full_batch": True}, {})
    for options in both:
        bench = tiny_bench(family, shots=1 if not options else 3, queries=2)
        tangent, plain = (bench.learned("gd-linearized", LR, **options).delta, bench.learned("gd", LR, **options).delta)
        assert tangent is not None
        assert plain is not None
        assert oracle.worst(tangent, dict(plain)) <= 1e-9


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_several_steps_by_an_explicit_jacobian(family: str) -> None:
    """Each step: theta <- theta - lr * sum_c (softmax(f_lin)_c - 1[c = y]) grad f_c at the first weights."""
    bench = tiny_bench(family, shots=3, queries=2)
    copy = oracle.Copy(bench.model.hf)
    table = copy.table()
    change = {name: torch.zeros_like(value) for name, value in copy.named().items()}
    for tokens, _ in oracle.sequences(bench.lesson):
        logits, _ = copy.run(tokens)
        moved = _logits_along(copy, tokens, change)
        wrong = moved.softmax(-1)[:-1]
        wrong[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])] -= 1
        wrong /= len(tokens) - 1
        found = torch.autograd.grad((logits[:-1] * wrong.detach()).sum(), [p for p, _ in table.values()])
        for (name, (_, view)), gradient in zip(table.items(), found, strict=True):
            change[name] = change[name] - LR * view(gradient)
    learned = bench.learned("gd-linearized", LR)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, change) <= 1e-9
    plain = bench.learned("gd", LR).delta
    assert plain is not None
    assert oracle.worst(learned.delta, dict(plain)) > 1e-4


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_both_ways_to_the_derivative(family: str) -> None:
    """Forward mode and two backward passes, at a change that is not zero."""
    bench = tiny_bench(family, shots=3, queries=2)
    change = bench.learned("gd", LR).delta
    assert change is not None
    tokens = samples(bench.lesson.training, bench.lesson.bos, bench.model.device)[0]
    with torch.enable_grad(), weights_for(bench.model, change.slots(bench.model), tangent=True) as weights:
        weights.changes.update(change)
        with capturing(bench.model, Session(plain=True)):
            one, other = forward_mode(weights, tokens), two_backward_passes(weights, tokens)
    assert one[1].abs().max() > 1e-3
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)


def test_norms_of_wider_statistics_at_16_bits() -> None:
    """As on a GPU, where a layer norm at 16 bits keeps float32 statistics, and its derivative has their type."""
    model = wrapped("gpt2", torch.bfloat16)
    for module in model.hf.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.float()
    learned = Bench(model, tiny_lesson(model)).learned("gd-linearized", LR)
    assert learned.delta is not None
    assert all(change.dtype == torch.float32 and change.any() for change in learned.delta.values())
    assert learned.trace.label_logprobs.isfinite().all()


def _logits_along(copy: oracle.Copy, tokens: list[int], change: dict[str, Tensor]) -> Tensor:
    """f + J.change by torch.func, with the test's own plain attention."""
    by_name = {id(p): name for name, p in copy.hf.named_parameters()}
    primal, tangent = {}, {}
    for name, (parameter, view) in copy.table().items():
        key = by_name[id(parameter)]
        primal[key] = parameter.detach()
        if key not in tangent:
            tangent[key] = torch.zeros_like(primal[key])
        view(tangent[key]).add_(change[name])

    class Runs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hf = copy.hf

        def forward(self) -> Tensor:
            return reading.watch_with_gradients(self.hf, tokens)[0]

    runs = Runs()

    def f(weights: dict[str, Tensor]) -> Tensor:
        logits: Tensor = functional_call(runs, {f"hf.{name}": value for name, value in weights.items()}, ())
        return logits

    value, derivative, *_ = jvp(f, (primal,), (tangent,))
    along: Tensor = value + derivative
    return along.detach()


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_trace_is_the_finite_difference_linearisation(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # These norms round to float32 inside, and a small difference would show the rounding.
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda n, x: _rms(x, n.variance_epsilon) * n.weight)
    monkeypatch.setattr(Gemma2RMSNorm, "forward", lambda n, x: _rms(x, n.eps) * (1 + n.weight))
    bench = tiny_bench(family, shots=2, queries=4, want=frozenset({"layer_inputs"}))
    learned = bench.learned("gd-linearized", LR)
    assert learned.delta is not None
    z = bench.zero_shot
    eps = 1e-6
    up, down = (_moved(bench, learned.delta, sign * eps) for sign in (1, -1))
    for name in ("attn_out", "attn_scores", "residual"):
        slope = (getattr(up, name) - getattr(down, name)) / (2 * eps)
        expected = getattr(z, name) + slope
        torch.testing.assert_close(getattr(learned.trace, name), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    slope = (up.extras["layer_inputs"] - down.extras["layer_inputs"]) / (2 * eps)
    torch.testing.assert_close(
        learned.trace.extras["layer_inputs"], z.extras["layer_inputs"] + slope, rtol=1e-6, atol=1e-6
    )
    assert not torch.allclose(learned.trace.attn_out, _moved(bench, learned.delta, 1.0).attn_out, rtol=1e-3)


def test_probabilities_are_of_the_linearised_logits() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=2, queries=3))
    learned = bench.learned("gd-linearized", LR)
    assert learned.delta is not None
    copy = oracle.Copy(model.hf)
    for i, prompt in enumerate(bench.lesson.queries):
        for label, answer in enumerate(bench.lesson.answers):  # "Very Positive" has two tokens
            tokens = [*bench.lesson.bos, *prompt, *answer]
            logprobs = _logits_along(copy, tokens, dict(learned.delta)).log_softmax(-1)
            first = len(tokens) - len(answer)
            expected = torch.stack([logprobs[first + k - 1, t] for k, t in enumerate(answer)]).mean()
            torch.testing.assert_close(learned.trace.label_logprobs[i, label], expected)


def test_the_last_layers_exit_is_the_linearised_models_own_answer() -> None:
    bench = tiny_bench("gpt2", want=frozenset({"exits"}), shots=2, queries=5)
    trace = bench.learned("gd-linearized", LR).trace
    assert trace.label_logprobs_at_layer is not None
    torch.testing.assert_close(trace.label_logprobs_at_layer[:, -1], trace.label_logprobs.log_softmax(-1))
    assert "readout" not in vars(bench.model)


def test_an_activation_with_a_backward_of_its_own_has_a_linearisation_too() -> None:
    bench = tiny_bench("bloom", shots=2, queries=3)
    learned, eps = bench.learned("gd-linearized", LR), 1e-5
    assert learned.delta is not None
    up, down = (_moved(bench, learned.delta, sign * eps) for sign in (1, -1))
    slope = (up.attn_out - down.attn_out) / (2 * eps)
    torch.testing.assert_close(learned.trace.attn_out, bench.zero_shot.attn_out + slope, rtol=1e-6, atol=1e-6)


def _rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _moved(bench: Bench, delta: Delta, factor: float) -> Trace:
    with delta.scaled(factor).applied(bench.model):
        return bench.model.read(bench.lesson, want=bench.read_want)
