"""The fit of temperature and biases against scipy's minimiser, and at its bounds."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from dualscope.metrics.calibration import STEEPEST, calibration


def drawn(seed: int, queries: int, classes: int, like: float, size: float) -> tuple[Tensor, Tensor]:
    """A target, and scores that are so much like it."""
    generator = torch.Generator().manual_seed(seed)
    icl, other = (3 * torch.randn(queries, classes, generator=generator, dtype=torch.float64) for _ in "12")
    return 0.999 * icl.softmax(-1) + 0.001 / classes, size * (other + like * icl)


def divergence(target: Tensor, found: Tensor) -> float:
    return float((target * (target.log() - found)).sum(-1).mean())


def by_scipy(target: Tensor, scores: Tensor, biases: bool) -> float:
    p, x = target.numpy(), scores.numpy()
    classes = x.shape[1]

    def loss(point: np.ndarray) -> float:
        z = point[0] * x + (point[1:] if biases else 0.0)
        z = z - z.max(-1, keepdims=True)
        return float((p * (np.log(p) - z + np.log(np.exp(z).sum(-1, keepdims=True)))).sum(-1).mean())

    bounds = [(0.0, STEEPEST)] + [(None, None)] * (classes if biases else 0)
    starts = ([start] + [0.0] * (len(bounds) - 1) for start in (0.0, 0.01, 1.0, STEEPEST))
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    found = (minimize(loss, s, method="L-BFGS-B", bounds=bounds, options=options) for s in starts)
    return float(min(one.fun for one in found))


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("like", "queries", "classes"), [(0.0, 5, 2), (1.0, 60, 3), (-1.0, 60, 2), (3.0, 300, 6)])
def test_nothing_is_nearer(like: float, queries: int, classes: int, size: float, biases: bool) -> None:
    target, scores = drawn(queries, queries, classes, like, size)
    own = calibration(target, scores, biases)
    assert 0 <= own.slope <= STEEPEST
    found, best = divergence(target, own.apply(scores)), by_scipy(target, scores, biases)
    assert found <= best + 1e-9
    assert found >= best - 1e-6  # scipy stops a little early


def test_a_slope_stays_within_its_bounds() -> None:
    target, _ = drawn(1, 40, 3, 0.0, 1.0)
    assert calibration(target, -target.log()).slope == 0.0
    assert calibration(target, target.log() / 50).slope == STEEPEST
    held = calibration(target, target.log() / 50, biases=False)
    torch.testing.assert_close(held.biases, torch.zeros(3, dtype=torch.float64))
    assert held.slope == STEEPEST


def test_scores_that_say_nothing_get_the_targets_mean() -> None:
    target, _ = drawn(2, 40, 3, 0.0, 1.0)
    for scores in (torch.zeros(40, 3), torch.ones(40, 1) * torch.tensor([3.0, 0.0, -1.0])):
        found = calibration(target, scores).apply(scores).exp()
        torch.testing.assert_close(found, target.mean(0).expand_as(found), atol=1e-7, rtol=0)


def test_an_answer_that_is_sure_and_wrong_does_not_outweigh_all_others() -> None:
    target, scores = drawn(3, 60, 2, 2.0, 1.0)
    scores[0] = torch.tensor([1e6, -1e6], dtype=torch.float64) * (1 if target[0, 1] > 0.5 else -1)
    constant = divergence(target, target.mean(0).log().expand_as(target))
    assert divergence(target, calibration(target, scores).apply(scores)) <= constant + 1e-9
