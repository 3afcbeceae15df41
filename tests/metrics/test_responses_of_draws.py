"""Responses against plain loops, and learners whose response is known by construction."""

import math

import numpy as np
import pytest
import torch

from dualscope.core.words import Level
from dualscope.learners.response_bench import answer_vectors, centred, function_part
from dualscope.metrics.responses_of_draws import Responses, gram, influence, learned_share, products, signal_to_noise
from dualscope.models.reading.trace import Trace
from dualscope.theory import linear_attention_step as vonoswald

CHANCE: Level = "chance"
HALF: Level = "half"
LEVELS: list[Level | None] = [*[CHANCE] * 6, *[HALF] * 6]


def trace(logprobs: torch.Tensor, labels: torch.Tensor) -> Trace:
    n = len(labels)
    empty = torch.zeros(n, 1, 2, dtype=torch.float64)
    ids = tuple(map(str, range(n)))
    return Trace(empty, empty[..., None], torch.ones(n), empty, logprobs, labels, ids)


def test_answer_vectors() -> None:
    logs = torch.tensor([[-1.0, -2.0, -5.0]], dtype=torch.float64)
    p = [math.exp(value) for value in logs[0].tolist()]
    shares = [value / sum(p) * 0.999 + 0.001 / 3 for value in p]
    expected = [math.log(share) for share in shares]
    mean = sum(expected) / 3
    assert answer_vectors(logs)[0].tolist() == pytest.approx([value - mean for value in expected], abs=1e-12)


def test_products_and_correlation_are_those_of_plain_loops() -> None:
    torch.manual_seed(0)
    r_raw, s_raw = torch.randn(2, 12, 5, 3, dtype=torch.float64)
    r, s = (function_part(centred(raw, LEVELS)) for raw in (r_raw, s_raw))
    found = products(r, s)

    def plain(raw: torch.Tensor) -> np.ndarray:
        values = raw.numpy()
        out = np.zeros_like(values)
        for k in range(12):
            same = [j for j in range(12) if LEVELS[j] == LEVELS[k]]
            for q in range(5):
                for c in range(3):
                    out[k, q, c] = values[k, q, c] - sum(values[j, q, c] for j in same) / len(same)
        again = out.copy()
        for k in range(12):
            for q in range(5):
                for c in range(3):
                    again[k, q, c] = out[k, q, c] - sum(out[k, p, c] for p in range(5)) / 5
        return again

    a, b = plain(r_raw), plain(s_raw)
    top = below_r = below_s = 0.0
    for k in range(12):
        for q in range(5):
            for c in range(3):
                top += a[k, q, c] * b[k, q, c]
                below_r += a[k, q, c] ** 2
                below_s += b[k, q, c] ** 2
    assert found.correlation == pytest.approx(top / math.sqrt(below_r * below_s), abs=1e-10)
    for k in range(12):
        for other in range(12):
            expected = sum(a[k, q, c] * b[other, q, c] for q in range(5) for c in range(3))
            assert found.draws[k, other] == pytest.approx(expected, abs=1e-10)
    for q in range(5):
        for p in range(5):
            expected = sum(a[k, q, c] * b[k, p, c] for k in range(12) for c in range(3))
            assert found.queries[q, p] == pytest.approx(expected, abs=1e-10)
    assert gram(r)[2, 7] == pytest.approx((a[2] * a[7]).sum(), abs=1e-10)


def test_learned_share_is_that_of_a_plain_loop_over_the_chance_level() -> None:
    torch.manual_seed(1)
    values, start = torch.randn(12, 4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    mean = sum(values[k] for k in range(6)) / 6
    spread = sum(((values[k] - mean) ** 2).sum() for k in range(6))
    moved = sum(((values[k] - start) ** 2).sum() for k in range(6))
    assert learned_share(values, start, LEVELS) == pytest.approx(float(6 / 5 * spread / moved), abs=1e-10)


def test_a_learner_has_a_share_of_1_and_a_recogniser_of_0() -> None:
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    weights = torch.randn(400, 50, 2, generator=generator, dtype=torch.float64)
    levels: list[Level | None] = ["chance"] * 40
    labels = torch.sign(torch.randn(40, 400, generator=generator, dtype=torch.float64))
    learner = start + torch.einsum("kn,nqc->kqc", labels, weights)
    assert learned_share(learner, start, levels) == pytest.approx(1, abs=0.02)
    recogniser = (start + 3.0).expand(40, -1, -1)
    assert learned_share(recogniser, start, levels) == pytest.approx(0, abs=1e-12)


def test_a_shift_towards_the_last_label_is_a_bias_and_no_function() -> None:
    """The same for every query, but for noise: what is left of it in the function is nothing."""
    generator = torch.Generator().manual_seed(3)
    shift = torch.sign(torch.randn(12, 1, 1, generator=generator, dtype=torch.float64))
    shift = shift * torch.tensor([1.0, -1.0], dtype=torch.float64)
    base = torch.randn(2, 1, 500, 2, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(2, 12, 500, 2, generator=generator, dtype=torch.float64)
    r, s = (centred(one + shift + n, LEVELS) for one, n in zip(base, noise, strict=True))
    assert abs(products(function_part(r), function_part(s)).correlation) < 0.05
    assert products(r.mean(1, keepdim=True), s.mean(1, keepdim=True)).correlation > 0.95


def test_influence_is_the_change_of_the_right_labels_log_odds() -> None:
    labels = torch.tensor([0, 1])
    before = trace(torch.log(torch.tensor([[0.7, 0.3], [0.6, 0.4]], dtype=torch.float64)), labels)
    after = trace(torch.log(torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)), labels)

    def odds(p: float) -> float:
        p = 0.999 * p + 0.0005
        return math.log(p / (1 - p))

    found = influence([after, before], before)
    assert found.tolist() == [
        pytest.approx([odds(0.2) - odds(0.7), 0.0], abs=1e-12),
        pytest.approx([0.0, 0.0], abs=1e-12),
    ]


def test_a_part_of_the_draws_keeps_their_levels() -> None:
    values = torch.arange(24.0).reshape(12, 2, 1)
    whole = Responses(tuple(range(12)), tuple(LEVELS), values, values[..., None])
    some = whole.only([0, 7, 11])
    assert some.draws == (0, 7, 11)
    assert some.levels == ("chance", "half", "half")
    assert some.answers[:, 0, 0].tolist() == [0.0, 14.0, 22.0]
    assert some.outputs is not None
    assert some.outputs.shape[0] == 3


def test_what_rounding_alone_makes_is_below_the_floor() -> None:
    generator = torch.Generator().manual_seed(4)
    base = torch.randn(1, 50, 64, generator=generator, dtype=torch.float64).expand(12, -1, -1)
    rounded = (base + 1e-9 * torch.randn(12, 50, 64, generator=generator, dtype=torch.float64)).float()
    eps = torch.finfo(torch.float32).eps
    assert signal_to_noise(rounded, centred(rounded, LEVELS), eps) < 10
    real = base + 1e-3 * torch.randn(12, 50, 64, generator=generator, dtype=torch.float64)
    assert signal_to_noise(real, centred(real, LEVELS), eps) > 10


def test_a_layer_that_is_a_step_of_descent_responds_as_the_step() -> None:
    """von Oswald et al.'s construction, labels permuted among the examples; predictions stand for log-probabilities."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, 10, generator=generator, dtype=torch.float64)
    y = torch.randn(16, 1, generator=generator, dtype=torch.float64)
    queries = torch.randn(50, 10, generator=generator, dtype=torch.float64)
    start = 0.3 * torch.randn(1, 10, generator=generator, dtype=torch.float64)
    layer = vonoswald.gd_layer(start, 0.7, 16)
    other = torch.randn(16, 10, generator=generator, dtype=torch.float64)
    by_layer, by_descent, by_others = [], [], []
    for _ in range(12):
        labels = y[torch.randperm(16, generator=generator)]
        tokens = [vonoswald.prediction(layer(vonoswald.tokens_of(x, labels, q, start)), 1) for q in queries]
        by_layer.append(torch.stack([one.reshape(1) for one in tokens]))
        by_descent.append(queries @ vonoswald.gd_steps(x, labels, start, 0.7, 1).reshape(1, -1).T)
        by_others.append(queries @ vonoswald.gd_steps(other, labels, start, 0.7, 1).reshape(1, -1).T)
    r, s, unrelated = (function_part(centred(torch.stack(one), LEVELS)) for one in (by_layer, by_descent, by_others))
    assert products(r, s).correlation >= 0.999
    assert abs(products(r, unrelated).correlation) < 0.5
