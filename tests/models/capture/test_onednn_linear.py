"""oneDNN's product is the layer's own, with its gradient, and steps aside wherever something else is asked for."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from transformers.pytorch_utils import Conv1D

from dualscope.models import Model
from dualscope.models.capture import onednn_linear
from dualscope.models.capture.onednn_linear import by_onednn, forward, is_available
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model

pytestmark = pytest.mark.skipif(not is_available(), reason="this build of torch has no oneDNN product")

LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(24, 40),
    lambda: nn.Linear(24, 40, bias=False),
    lambda: Conv1D(40, 24),
]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layer = make()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN was asked to multiply."""
    seen: list[tuple[int, ...]] = []
    plain = onednn_linear.product

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(tuple(x.shape))
        return plain(x, weight, bias)

    monkeypatch.setattr(onednn_linear, "product", noted)
    return seen


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("shape", [(9, 24), (3, 7, 24), (2, 2, 5, 24)])
def test_output_and_gradients_are_those_of_the_layer_in_float64(
    make: Callable[[], nn.Module], shape: tuple[int, ...], products: list[tuple[int, ...]]
) -> None:
    layer, x = seeded(make), torch.randn(shape, requires_grad=True)
    wide, wide_x = seeded(make).double(), x.detach().double().requires_grad_()
    found, exact = forward(layer, x), wide(wide_x)
    weights = torch.randn_like(exact)
    (found * weights.float()).sum().backward()
    (exact * weights).sum().backward()
    assert len(products) == 2, "forward and backward"
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    pairs = [(x, wide_x), *zip(layer.parameters(), wide.parameters(), strict=True)]
    for own, other in pairs:
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=1e-5, atol=1e-4)


def test_frozen_weights_get_no_gradient() -> None:
    layer = seeded(LAYERS[0]).requires_grad_(False)
    x = torch.randn(9, 24, requires_grad=True)
    forward(layer, x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None


def test_a_gradient_can_be_differentiated_again() -> None:
    layer = seeded(LAYERS[0]).requires_grad_(False)
    x, v, along = torch.randn(9, 24, requires_grad=True), torch.zeros(9, 40, requires_grad=True), torch.randn(9, 24)
    (pulled,) = torch.autograd.grad(forward(layer, x), x, v, create_graph=True)
    (found,) = torch.autograd.grad(pulled, v, along)
    torch.testing.assert_close(found, along @ layer.get_parameter("weight").T)


def test_a_tangent_is_carried_as_the_layer_carries_it(products: list[tuple[int, ...]]) -> None:
    layer, x, along = seeded(LAYERS[0]), torch.randn(9, 24), torch.randn(9, 24)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(forward(layer, forward_ad.make_dual(x, along))).tangent
    torch.testing.assert_close(tangent, along @ layer.get_parameter("weight").T)
    other = torch.func.jvp(lambda rows: forward(layer, rows), (x,), (along,))[1]
    torch.testing.assert_close(other, tangent)
    assert not products


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (9, torch.float64), (9, torch.bfloat16)])
def test_few_rows_and_other_precisions_are_left_to_torch(
    rows: int, dtype: torch.dtype, products: list[tuple[int, ...]]
) -> None:
    layer = seeded(LAYERS[0]).to(dtype)
    x = torch.randn(rows, 24, dtype=dtype)
    assert torch.equal(forward(layer, x), layer(x))
    assert not products


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_reading_is_that_of_the_model_without_it(
    family: str, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, tokenizer = tiny_model(family, torch.float32)
    model, lesson = Model(hf, tokenizer), random_lesson(queries=(9, 8))
    found = model.read(lesson, model.prefix(lesson.context))
    assert products
    products.clear()
    monkeypatch.setattr(onednn_linear, "is_available", lambda: False)
    plain = model.read(lesson, model.prefix(lesson.context))
    assert not products
    for name in ("attn_out", "attn_scores", "residual", "label_logprobs"):
        torch.testing.assert_close(
            getattr(found, name), getattr(plain, name), rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
        )


def test_a_layer_that_computes_something_else_is_left_to_it_and_all_are_restored() -> None:
    model = Model.load("embedded", device="cpu")
    busy: Any = model.linear_layers[0]
    busy.forward = other = lambda x: x
    try:
        with ExitStack() as stack:
            by_onednn(model, stack)
            assert busy.forward is other
            assert all("forward" in layer.__dict__ for layer in model.linear_layers)
        assert busy.forward is other
        assert not any("forward" in layer.__dict__ for layer in model.linear_layers[1:])
    finally:
        del busy.forward
    with ExitStack() as stack:
        by_onednn(Model.load("embedded", device="cpu", dtype="float64"), stack)
        assert not any("forward" in layer.__dict__ for layer in model.linear_layers)
