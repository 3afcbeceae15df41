"""The dual forms over shapes, and the places where a careless version of each would break."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.theory import Draw
from dualscope.theory.features import (
    exp_kernel,
    gram_features,
    kernel_sides,
    random_features,
    taylor_features,
)
from dualscope.theory.icl_dual import (
    Heads,
    dw_icl,
    finetuning_is_an_update,
    icl_is_an_update,
    linear_attention_layer,
    softmax_split,
    w_zsl,
)
from dualscope.theory.softmax_dual import (
    FeedForward,
    Head,
    attention_is_one_step,
    dual_model,
    ffn_is_one_step,
    kernel_trick,
    token_steps,
)
from dualscope.theory.variants import negative, regularized, regularized_output, regularized_published

seeds = st.integers(0, 10**6)


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    heads=st.integers(1, 4),
    dim=st.integers(1, 5),
    demos=st.integers(0, 12),
    own=st.integers(0, 5),
)
def test_icl_and_finetuning_for_any_shape(seed: int, heads: int, dim: int, demos: int, own: int) -> None:
    draw = Draw(seed)
    layer, change = (Heads.draw(draw, heads, dim, width=6) for _ in range(2))
    context, tokens, x = draw.normal(demos, 6), draw.normal(own, 6), draw.normal(6)
    assert icl_is_an_update(layer, context, tokens, x).error < 1e-10
    assert finetuning_is_an_update(layer, change.key, change.value, tokens, x).error < 1e-10


def test_finetuning_needs_its_second_order_term() -> None:
    draw = Draw(0)
    heads, change, own, x = Heads.draw(draw), Heads.draw(draw), draw.normal(9, 12), draw.normal(12)
    gram = own.T @ own
    first = change.value @ gram @ heads.key.mT + heads.value @ gram @ change.key.mT
    q = heads.query @ x
    cut = torch.einsum("hwd,hde,he->w", heads.output, w_zsl(heads, own) + first, q)
    tuned = Heads(heads.query, heads.key + change.key, heads.value + change.value, heads.output)
    assert not torch.allclose(cut, linear_attention_layer(tuned, own, x), rtol=1e-2)


def test_demonstrations_in_any_order_are_one_update() -> None:
    """Linear attention has no order: what order does in a real model comes in through positions and depth."""
    draw = Draw(0)
    heads, demos = Heads.draw(draw), draw.normal(20, 12)
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
def test_softmax_dual_for_any_shape_and_rate(
    seed: int, n: int, d: int, data: st.DataObject, eta: float
) -> None:
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
    random = [
        kernel_sides(random_features(draw.normal(m, 4)), keys, queries).error for m in (64, 4096, 262144)
    ]
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
