"""Layers that learn: von Oswald, Ahn, Cheng; the closed forms; the bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.theory import Draw, bound, closed_forms, dual_of, functional, preconditioned
from dualscope.theory import linear_attention_step as vonoswald
from dualscope.theory.bound import Population, dual_norm, evaluate, worst_weight
from dualscope.theory.features import slope
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model

seeds = st.integers(0, 10**6)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(1, 8), n_x=st.integers(1, 5), n_y=st.integers(1, 3), depth=st.integers(0, 5))
def test_vonoswald_for_any_shape(seed: int, n: int, n_x: int, n_y: int, depth: int) -> None:
    draw = Draw(seed)
    x, y, query, start = draw.normal(n, n_x), draw.normal(n, n_y), draw.normal(n_x), draw.normal(n_y, n_x)
    assert vonoswald.layers_are_steps(x, y, query, start, 0.05, depth).error < 1e-10
    assert vonoswald.layers_are_gd_plus_plus(x, y, query, 0.05, 0.02, depth).error < 1e-10


def test_gd_steps_follow_the_gradient() -> None:
    draw = Draw(0)
    x, y, start = draw.normal(6, 4), draw.normal(6, 2), draw.normal(2, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(((x @ start.T - y) ** 2).sum() / 12, start)
    torch.testing.assert_close(vonoswald.gd_steps(x, y, start, 0.3, 1), start - 0.3 * gradient)


def test_gd_plus_plus_beats_gd() -> None:
    """The published setting, K = 2, constructed layers and the published rates."""
    draw = Draw(0)
    plain: list[float] = []
    curved: list[float] = []
    for _ in range(300):
        x = draw.uniform(11, 10) - 0.5
        y = x @ draw.normal(1, 10).T
        for errors, gamma, eta in ((plain, 0.0, 6.0), (curved, 0.175, 6.0)):
            weight = vonoswald.gd_plus_plus(x[:-1], y[:-1], eta, gamma, steps=2)
            errors.append(float((x[-1] @ weight.T - y[-1]) ** 2) / 2)
    assert sum(curved) < sum(plain)


def test_the_best_preconditioner_by_simulation() -> None:
    """The exact risk is the mean over simulated prompts, and A* beats its neighbours."""
    covariance = torch.diag(torch.tensor([2.0, 1.0, 0.3], dtype=torch.float64))
    best = preconditioned.optimal_preconditioner(covariance, n=6)
    draw = Draw(0)
    x = draw.normal(40_000, 7, 3) @ covariance.sqrt()
    w = draw.normal(40_000, 3)
    context, query = x[:, :6], x[:, 6]
    y = (context @ w.unsqueeze(-1)).squeeze(-1)
    moment = torch.einsum("tni,tn->ti", context, y) / 6
    simulated = (((moment @ best) * query).sum(-1) - (w * query).sum(-1)) ** 2
    exact = preconditioned.one_layer_risk(best, covariance, n=6)
    assert abs(float(simulated.mean() - exact)) < 4 * float(simulated.std()) / 200
    for _ in range(20):
        near = best + 0.05 * draw.normal(3, 3)
        assert preconditioned.one_layer_risk(near, covariance, n=6) > exact


@settings(max_examples=30, deadline=None)
@given(seed=seeds, kernel=st.sampled_from(list(functional.KERNELS)), n=st.integers(1, 14), depth=st.integers(0, 7))
def test_functional_gd_for_any_kernel(seed: int, kernel: str, n: int, depth: int) -> None:
    draw = Draw(seed)
    x, y, query = functional.on_sphere(draw, n), draw.normal(n), functional.on_sphere(draw, 2)
    assert functional.layers_are_functional_steps(x, y, query, kernel, 0.1, depth, scale=0.5).error < 1e-10


def test_the_gaussian_process_interpolates() -> None:
    draw = Draw(0)
    x, y = functional.on_sphere(draw, 8), draw.normal(8)
    torch.testing.assert_close(functional.bayes(x, y, x, "exp"), y)


def test_unknown_kernel_is_explained() -> None:
    with pytest.raises(InputError, match="attention kernel 'expo': did you mean exp"):
        functional.KERNELS["expo"]


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(1, 12), d=st.integers(1, 6))
def test_ridge_lies_between_zero_and_ols(seed: int, n: int, d: int) -> None:
    draw = Draw(seed)
    x, y = draw.normal(n, d), draw.normal(n)
    norms = [float(closed_forms.ridge(x, y, penalty).norm()) for penalty in (1e3, 1.0, 1e-3)]
    assert norms == sorted(norms)
    assert norms[-1] <= float(closed_forms.ols(x, y).norm()) + 1e-9


def test_closed_form_measures() -> None:
    draw = Draw(0)
    x, y, query = draw.normal(9, 3), draw.normal(9), draw.normal(5, 3)
    assert torch.equal(closed_forms.knn(x, y, x, k=1), y)
    torch.testing.assert_close(closed_forms.knn(x, y, query, k=9), y.mean().expand(5))
    with pytest.raises(InputError, match="between 1 and"):
        closed_forms.knn(x, y, query, k=10)
    first, second = closed_forms.ols(x, y), closed_forms.ridge(x, y, 1.0)
    assert closed_forms.ilwd(first, first) == 0 < closed_forms.ilwd(first, second)
    assert closed_forms.ilwd(torch.zeros(4, 3), torch.full((4, 3), 2.0)) == 12  # 3 weights' squares, mean over the 4
    assert closed_forms.spd(query @ first, query @ first) == 0 < closed_forms.spd(query @ first, query @ second)
    # One pass of SGD on one example is one step of GD on it.
    torch.testing.assert_close(closed_forms.sgd(x[:1], y[:1], 0.1), closed_forms.gd(x[:1], y[:1], 0.1, 1))


def test_no_weight_in_the_ball_has_a_larger_gap() -> None:
    draw = Draw(0)
    population = Population.draw(draw, n=60)
    sample, radius = population.sample(12, draw.generator), torch.tensor(1.3, dtype=torch.float64)
    worst = worst_weight(population, sample, radius)
    gram = population.gram
    assert float((worst @ gram @ worst).sqrt()) == pytest.approx(1.3)
    largest = evaluate(population, sample, worst, radius).gap
    for _ in range(50):
        other = draw.normal(60)
        other = radius * other / (other @ gram @ other).sqrt()
        assert evaluate(population, sample, other, radius).gap < largest


def test_the_bound_never_fails_and_both_fall_as_the_root_of_n() -> None:
    found = bound.decay(Draw(11))
    assert found.gaps.shape == (8, 30)
    assert found.violations == 0
    assert abs(float(found.slope) + 0.5) <= 0.1
    totals = slope(torch.tensor(found.sizes), found.bounds.mean(1))
    assert abs(float(totals) + 0.5) <= 0.1


def test_dual_norm_is_the_norm_of_the_dual_solution() -> None:
    from dualscope.theory.softmax_dual import Head, dual_model

    head = Head.draw(Draw(0), n=16, demonstrations=16)
    dual = dual_model(head, head.gram_map())
    torch.testing.assert_close(dual.step(dual.start).norm(), dual_norm(head.keys, head.values, head.query))


def test_each_term_of_the_bound_is_its_closed_form() -> None:
    """Keys of 0 make every kernel value 1, so that a calculation by hand is the whole formula."""
    values = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    population = Population(torch.zeros(2, 5, dtype=torch.float64), values)
    coefficients = torch.tensor([0.5, 0.25], dtype=torch.float64)  # W phi(k) = (1.5, 1) for every key
    sample, radius = torch.tensor([0, 0, 0, 1]), torch.tensor(0.7, dtype=torch.float64)
    found = evaluate(population, sample, coefficients, radius, delta=0.1)
    assert float(found.rho) == 4.0  # the longest value; what W says is shorter
    assert float(found.complexity) == pytest.approx(2 * 0.7 * 4.0 / 4 * 4**0.5)
    assert float(found.confidence) == pytest.approx(6 * 16 * math.sqrt(math.log(20) / 8))
    assert float(found.total) == pytest.approx(float(found.complexity) + float(found.confidence))
    # Losses are -4.5 and -4: the population's mean is -4.25, the sample's -4.375.
    assert float(found.gap) == pytest.approx(0.125)


def test_each_term_of_the_bound_scales_as_it_should() -> None:
    population = Population.draw(Draw(3), n=50)
    generator = torch.Generator().manual_seed(0)
    sample, radius = population.sample(20, generator), torch.tensor(0.4, dtype=torch.float64)
    weights = worst_weight(population, sample, radius)
    one = evaluate(population, sample, weights, radius)
    wider = evaluate(population, sample, weights, 3 * radius)  # the same W in a larger ball
    assert float(wider.complexity / one.complexity) == pytest.approx(3)
    assert float(wider.confidence) == float(one.confidence)
    again = evaluate(population, sample.repeat(4), weights, radius)  # four times N, the same mean of K_ii
    assert float(again.complexity / one.complexity) == pytest.approx(0.5)
    assert float(again.confidence / one.confidence) == pytest.approx(0.5)
    surer = evaluate(population, sample, weights, radius, delta=0.05 / 100)
    assert float(surer.complexity) == float(one.complexity)
    assert float(surer.confidence / one.confidence) == pytest.approx(math.sqrt(math.log(2 / 0.0005) / math.log(40)))
    larger = evaluate(population, sample, 100 * weights, radius)  # what W says is now the longest
    assert float(larger.rho / one.rho) > 1
    assert float(larger.complexity / one.complexity) == pytest.approx(float(larger.rho / one.rho))
    assert float(larger.confidence / one.confidence) == pytest.approx(float(larger.rho / one.rho) ** 2)
    longer = Population(1.2 * population.keys, population.values)
    trace = longer.kernel.diagonal()[sample].sum() / population.kernel.diagonal()[sample].sum()
    found = evaluate(longer, sample, weights, radius)
    assert float(found.complexity / one.complexity) == pytest.approx(float(found.rho / one.rho * trace.sqrt()))


def test_the_bound_on_a_real_head() -> None:
    """Every head of a small model with grouped heads: it holds, and for every W of the ball, not the worst alone."""
    model = Model(*tiny_model("llama", torch.float64))
    for layer in range(model.n_layers):
        for number in range(model.n_heads):
            head = dual_of(model, random_lesson(shots=6), layer, number).head
            found = bound.head_decay(head, Draw(layer), sizes=(8, 64), draws=4)
            assert found.violations == 0
            assert bool((found.gaps > 0).all())
            assert found.gaps[1].mean() < found.gaps[0].mean()
            balanced = head.balanced()
            torch.testing.assert_close(balanced.output(), head.output())
            population = Population.of(balanced)
            assert len(population.keys) == head.demonstrations
            radius = dual_norm(population.keys, population.values, balanced.query)
            sample = population.sample(8, torch.Generator().manual_seed(0))
            any_weight = Draw(1).normal(len(population.keys))
            any_weight *= radius / (any_weight @ population.gram @ any_weight).sqrt()
            one = evaluate(population, sample, any_weight, radius)
            assert abs(float(one.gap)) <= float(one.total)


def test_the_bound_refuses_what_it_is_not_stated_for() -> None:
    head = dual_of(Model(*tiny_model("bloom", torch.float64)), random_lesson(), layer=0, head=0).head
    with pytest.raises(InputError, match="a part beside"):
        bound.head_decay(head, Draw(0))
