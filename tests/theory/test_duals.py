"""The dual forms over shapes, and the places where a careless version of each would break."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.theory import Draw
from dualscope.theory.attention_variants import (
    augment,
    augmented,
    negative,
    regularized,
    regularized_output,
    regularized_published,
)
from dualscope.theory.features import (
    exp_kernel,
    gram_features,
    kernel_sides,
    random_features,
    taylor_features,
    taylor_remainder,
)
from dualscope.theory.icl_dual import (
    HeadWeights,
    dw_icl,
    finetuning_is_an_update,
    icl_is_an_update,
    linear_attention_layer,
    softmax_split,
    w_zsl,
)
from dualscope.theory.likeness import dilution, normalised_likeness, orthogonal_updates, plain_likeness
from dualscope.theory.representation import LOSSES, attention_of, step_is_attention
from dualscope.theory.softmax_dual import (
    FeedForward,
    Head,
    attention_is_one_step,
    dual_model,
    ffn_is_one_step,
    kernel_trick,
    token_steps,
)

seeds = st.integers(0, 10**6)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, heads=st.integers(1, 4), dim=st.integers(1, 5), demos=st.integers(0, 12), own=st.integers(0, 5))
def test_icl_and_finetuning_for_any_shape(seed: int, heads: int, dim: int, demos: int, own: int) -> None:
    draw = Draw(seed)
    layer, change = (HeadWeights.draw(draw, heads, dim, width=6) for _ in range(2))
    context, tokens, x = draw.normal(demos, 6), draw.normal(own, 6), draw.normal(6)
    assert icl_is_an_update(layer, context, tokens, x).error < 1e-10
    assert finetuning_is_an_update(layer, change.key, change.value, tokens, x).error < 1e-10


def test_finetuning_needs_its_second_order_term() -> None:
    draw = Draw(0)
    heads, change, own, x = (HeadWeights.draw(draw), HeadWeights.draw(draw), draw.normal(9, 12), draw.normal(12))
    gram = own.T @ own
    first = change.value @ gram @ heads.key.mT + heads.value @ gram @ change.key.mT
    q = heads.query @ x
    cut = torch.einsum("hwd,hde,he->w", heads.output, w_zsl(heads, own) + first, q)
    tuned = HeadWeights(heads.query, heads.key + change.key, heads.value + change.value, heads.output)
    assert not torch.allclose(cut, linear_attention_layer(tuned, own, x), rtol=1e-2)


def test_demonstrations_in_any_order_are_one_update() -> None:
    """Linear attention has no order: what order does in a real model comes in through positions and depth."""
    draw = Draw(0)
    heads, demos = HeadWeights.draw(draw), draw.normal(20, 12)
    shuffled = demos[torch.randperm(20, generator=draw.generator)]
    torch.testing.assert_close(dw_icl(heads, demos), dw_icl(heads, shuffled))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(1, 20), data=st.data(), size=st.floats(0.1, 300.0))
def test_split_anywhere_even_with_huge_scores(seed: int, n: int, data: st.DataObject, size: float) -> None:
    demonstrations = data.draw(st.integers(0, n))
    draw = Draw(seed)
    assert softmax_split(size * draw.normal(2, n), draw.normal(2, n, 3), demonstrations).error < 1e-10


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(1, 16), d=st.integers(1, 6), data=st.data(), eta=st.floats(0.01, 10.0))
def test_softmax_dual_for_any_shape_and_rate(seed: int, n: int, d: int, data: st.DataObject, eta: float) -> None:
    demonstrations = data.draw(st.integers(0, n))
    draw = Draw(seed)
    head = Head.draw(draw, n, demonstrations, d)
    assert attention_is_one_step(head, head.gram_map(), eta).error < 1e-9
    biased = replace(head, bias=draw.normal(n))
    assert attention_is_one_step(biased, biased.gram_map(), eta).error < 1e-9
    assert kernel_trick(biased).error < 1e-10
    assert ffn_is_one_step(head, FeedForward.draw(draw, d), head.gram_map()).error < 1e-8


def test_the_gram_map_is_exact_on_all_pairs_and_refuses_strangers() -> None:
    points = Draw(0).normal(12, 3)
    for pivot in (None, 5):
        phi = gram_features(points, pivot)
        torch.testing.assert_close(phi(points) @ phi(points).T, exp_kernel(points, points))
        with pytest.raises(InputError, match="only the points"):
            phi(points + 1)


def test_a_query_far_from_every_key() -> None:
    """exp(-|k - q|^2 / 2) is 1e-70 here; without the pivot the eigenvectors' rounding would be all there is."""
    head = Head.draw(Draw(0), size=5.0)
    assert attention_is_one_step(head, head.gram_map()).error < 1e-9


def test_repeated_tokens_make_a_singular_gram() -> None:
    head = Head.draw(Draw(0), n=4, demonstrations=3)
    twice = Head(head.query, head.keys.repeat(3, 1), head.values.repeat(3, 1), 9)
    assert attention_is_one_step(twice, twice.gram_map()).error < 1e-9
    torch.testing.assert_close(twice.output(), head.output())


def test_steps_reach_the_output_at_the_last_token_only() -> None:
    head = Head.draw(Draw(0))
    distance = (token_steps(head, head.gram_map()) - head.output()).norm(dim=-1)
    assert distance[-1] < 1e-9 * distance[0]
    assert bool((distance[:-1] > 1e-3).all())
    assert bool((distance.diff() > 0).any())  # not monotone


def test_the_loss_has_no_minimum() -> None:
    """It is linear in W: the gradient is the same everywhere, so a second step moves as far as the first."""
    head = Head.draw(Draw(0))
    dual = dual_model(head, head.gram_map())
    once = dual.step(dual.start)
    torch.testing.assert_close(dual.step(once) - once, once - dual.start)


def test_each_query_has_its_own_loss() -> None:
    head = Head.draw(Draw(0))
    other = replace(head, query=-head.query)
    points = gram_features(torch.cat([head.keys, head.query[None], other.query[None]]))
    trained = dual_model(head, points)
    asked_another = trained.predict(trained.step(trained.start), other.query)
    assert not torch.allclose(asked_another, other.output(), rtol=1e-2)


def test_approximations_converge() -> None:
    draw = Draw(0)
    keys, queries = draw.normal(20, 4) / 4, draw.normal(5, 4) / 4
    taylor = [kernel_sides(taylor_features(order), keys, queries).error for order in range(7)]
    assert taylor == sorted(taylor, reverse=True)
    assert taylor[-1] < 1e-5
    # |t|^(p+1) e^|t| / (p+1)! of t = 2, by hand
    bounds = taylor_remainder(torch.tensor([[2.0]]), torch.tensor([[1.0]]), orders=3).right
    torch.testing.assert_close(bounds / torch.e**2, torch.tensor([2.0, 2.0, 4 / 3]))
    random = [kernel_sides(random_features(draw.normal(m, 4)), keys, queries).error for m in (64, 4096, 262144)]
    assert random == sorted(random, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_two_regularized_forms_differ(alpha: float) -> None:
    head = Head.draw(Draw(0))
    assert regularized(head, head.gram_map(), alpha).error < 1e-9
    same = torch.allclose(regularized_output(head, alpha), regularized_published(head, alpha, own=23))
    assert same == (alpha == 0)


def test_negatives_of_strength_zero_are_plain_attention() -> None:
    head = Head.draw(Draw(0))
    negatives = torch.zeros(16, 1, dtype=torch.long)
    torch.testing.assert_close(negative(head, head.gram_map(), negatives, 0.0).left, head.output())
    assert negative(head, head.gram_map(), negatives, 0.5).error < 1e-9


def test_the_published_regularized_form_is_its_matrix() -> None:
    """W_V X [softmax(..) - alpha I], written out for all tokens of one head at once."""
    draw = Draw(0)
    weights = tuple(draw.weight(4, 6) for _ in range(3))
    tokens = draw.normal(5, 6)
    query, key, value = (tokens @ w.T for w in weights)
    mixed = torch.softmax(query @ key.T / 2, -1)  # d = 4
    expected = (mixed - 0.3 * torch.eye(5, dtype=torch.float64)) @ value
    for own, x in enumerate(tokens):
        head = Head.of(x, tokens, 3, *weights)
        torch.testing.assert_close(regularized_published(head, 0.3, own), expected[own])


@pytest.mark.parametrize("d", [1, 4, 9])
def test_a_head_made_from_weights_is_scaled_dot_product_attention(d: int) -> None:
    """torch's own attention divides k.q by the root of d: half of the root's root stands on either side."""
    draw = Draw(d)
    weights = (draw.normal(d, 6), draw.normal(d, 6), draw.normal(7, 6))
    x, tokens = draw.normal(6), draw.normal(9, 6)
    head = Head.of(x, tokens, 4, *weights)
    query, key, value = (t @ w.T for t, w in zip((x[None], tokens, tokens), weights, strict=True))
    expected = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])
    torch.testing.assert_close(head.output(), expected[0, 0])
    torch.testing.assert_close(head.query.norm() / query.norm(), torch.tensor(d**-0.25, dtype=torch.float64))


def test_an_augmentation_is_what_its_formula_says() -> None:
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    up = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    down = torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 1.0]], dtype=torch.float64)
    # relu(W1 x) = (1, 0, 2): W2 of it is (1, 2)
    torch.testing.assert_close(augment(x, up, down, 0.5), torch.tensor([[1.5, -1.0]], dtype=torch.float64))
    torch.testing.assert_close(augment(x, up, down, 0.0), x)
    head = Head.draw(Draw(0))
    plain = augmented(head, lambda values: values, lambda keys: keys, Head.gram_map)
    torch.testing.assert_close(plain.left, head.output())
    doubled = augmented(head, lambda values: 2 * values, lambda keys: keys, Head.gram_map)
    torch.testing.assert_close(doubled.left, 2 * head.output())


@settings(max_examples=20, deadline=None)
@given(seed=seeds, n=st.integers(2, 12), data=st.data(), name=st.sampled_from(sorted(LOSSES)))
def test_a_step_on_each_loss_is_attention_over_its_values(seed: int, n: int, data: st.DataObject, name: str) -> None:
    demonstrations = data.draw(st.integers(1, n - 1))
    head = Head.draw(Draw(seed), n, demonstrations)
    assert step_is_attention(head, head.gram_map(), LOSSES[name]).error < 1e-8
    dual = step_is_attention(head, head.gram_map(), LOSSES["dual"])
    torch.testing.assert_close(dual.left, head.output())


def test_where_the_losses_part() -> None:
    """Least squares has nothing to add where W says v already; the dual's loss pulls on all the same."""
    head = Head.draw(Draw(0), n=8, demonstrations=4)
    phi = head.gram_map()
    said = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not LOSSES["least squares"].values(said, said).any()
    assert torch.equal(LOSSES["dual"].values(said, said), said)
    assert float(LOSSES["cosine"].values(said, 3 * said).abs().max()) < 1e-12  # it only turns
    same = said[:1].expand(4, 4)
    assert float(LOSSES["contrastive"].values(said, same).abs().max()) < 1e-12  # nothing tells the tokens apart
    outputs = {name: attention_of(head, phi, loss) for name, loss in LOSSES.items()}
    for name in ("least squares", "contrastive", "cosine"):
        assert not torch.allclose(outputs[name], outputs["dual"], rtol=1e-2)


def test_dilution_is_what_softmax_takes() -> None:
    draw = Draw(0)
    scores, values = draw.normal(9), draw.normal(9, 4)
    lam = float(scores.softmax(-1)[:6].sum())
    z = scores[6:].softmax(-1) @ values[6:]
    sides = dilution(scores, values, demonstrations=6)
    torch.testing.assert_close(sides.left, scores.softmax(-1) @ values - z)
    torch.testing.assert_close(sides.right, sides.left)
    silent = torch.cat([torch.zeros(6, 4, dtype=torch.float64), values[6:]])
    torch.testing.assert_close(dilution(scores, silent, 6).left, -lam * z)


@given(seed=seeds, size=st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_normalising_makes_orthogonal_updates_alike(seed: int, size: float) -> None:
    """By hand: for |r| = s |z|, the cosine is (1 - 1/n)^2 / ((1 - 1/n)^2 + s^2 / n^2), n^2 = 1 + s^2."""
    z, first, second = orthogonal_updates(Draw(seed), width=8)
    first, second = (size / 3**0.5 * update for update in (first, second))
    n = math.sqrt(1 + size**2)
    away = (1 - 1 / n) ** 2
    expected = away / (away + (size / n) ** 2)
    assert float(normalised_likeness(z, z + first, z + second)) == pytest.approx(expected, abs=1e-9)
    assert abs(float(plain_likeness(z, z + first, z + second))) < 1e-9
    from dualscope.metrics.attention_output import sim_aou, sim_aou_norm

    traces = [v[None, None] for v in (z, z + first, z + second)]
    assert float(sim_aou_norm(*traces)) == pytest.approx(expected, abs=1e-9)
    assert abs(float(sim_aou(*traces))) < 1e-9
