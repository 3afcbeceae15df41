"""Evidence that adds up, or descent: whose answers, from one demonstration to many, predict in-context learning's?

Every candidate (a learner's answers at each number of shots) makes a model of in-context learning's answers: its own
log-probabilities times one number, with one prior of the labels, both the same at all numbers of shots. So the scale of
a candidate is free and the shape of its curve is not. They are fitted on some queries, and what counts is how likely
in-context learning's answers to the others are under them. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import t as student

Answers = NDArray[np.float64]
"""Log-probabilities of the labels, [shots, queries, classes]."""
FOLDS = 5
UNIFORM = 1e-3  # mixed into all answers: no sure one decides alone


@dataclass(frozen=True)
class Fit:
    """How well a candidate's answers predict in-context learning's, on queries that it was not fitted on."""

    name: str
    each: tuple[float, ...]  # by episode: the mean log-likelihood a query and number of shots, in nats
    scale: float  # what its log-probabilities are multiplied by, over all queries

    @property
    def mean(self) -> float:
        return float(np.mean(self.each))


@dataclass(frozen=True)
class Selection:
    """The candidates, the likeliest first, and how far the first is ahead of each other."""

    fits: tuple[Fit, ...]

    @property
    def best(self) -> str:
        return self.fits[0].name

    def ahead(self) -> dict[str, tuple[float, float, float]]:
        """Of each other candidate: how far the best one is ahead, the mean over episodes and its 95 % interval."""
        first = np.array(self.fits[0].each)
        return {fit.name: _with_interval(first - np.array(fit.each)) for fit in self.fits[1:]}


def select(reference: Sequence[Answers], candidates: Mapping[str, Sequence[Answers]]) -> Selection:
    """Which candidate predicts the reference's answers best, over several episodes of the same shots.

    >>> rng = np.random.default_rng(0)
    >>> one, other = (np.log(rng.dirichlet([1, 1], (6, 40))) for _ in range(2))
    >>> select([0.5 * one], {"one": [one], "other": [other]}).best
    'one'
    """
    fits = []
    for name, own in candidates.items():
        each = [held_out(truth, said) for truth, said in zip(reference, own, strict=True)]
        scale, _ = _fitted([*reference], [*own])
        fits.append(Fit(name, tuple(each), scale))
    return Selection(tuple(sorted(fits, key=lambda fit: -fit.mean)))


def held_out(reference: Answers, candidate: Answers) -> float:
    """The mean log-likelihood of the reference's answers under the candidate, fitted on other queries."""
    queries = np.arange(reference.shape[1]) % FOLDS
    total = 0.0
    for fold in range(FOLDS):
        rest, own = queries != fold, queries == fold
        if not own.any() or not rest.any():
            continue
        scale, prior = _fitted([reference[:, rest]], [candidate[:, rest]])
        total += _likelihood(scale, prior, reference[:, own], candidate[:, own]) * own.sum()
    return float(total / reference.shape[1])


def _fitted(reference: Sequence[Answers], candidate: Sequence[Answers]) -> tuple[float, Answers]:
    """The scale and the prior at which the reference's answers are likeliest, episodes counting alike."""
    shares = [np.exp(_smooth(one)).reshape(-1, one.shape[-1]) for one in reference]
    truth, own = np.concatenate(shares), np.concatenate([_smooth(one).reshape(-1, one.shape[-1]) for one in candidate])
    weights = np.concatenate([np.full((len(one), 1), 1 / (len(one) * len(shares))) for one in shares])

    def loss(values: Answers) -> tuple[float, Answers]:
        scale = float(np.exp(values[0]))
        said = log_softmax(scale * own + np.append(values[1:], 0.0), axis=-1)
        less = weights * (np.exp(said) - truth)  # the loss's derivative by the logits
        return -float((weights * truth * said).sum()), np.append(scale * (less * own).sum(), less.sum(0)[:-1])

    bounds = [(-6.0, 3.0)] + [(-10.0, 10.0)] * (truth.shape[-1] - 1)
    found = minimize(loss, np.zeros(truth.shape[-1]), method="L-BFGS-B", jac=True, bounds=bounds)
    return float(np.exp(found.x[0])), np.append(found.x[1:], 0.0)


def _likelihood(scale: float, prior: Answers, reference: Answers, candidate: Answers) -> float:
    """Of the reference's answers as shares, so that no label has to be drawn from them."""
    said = log_softmax(scale * _smooth(candidate) + prior, axis=-1)
    return float((np.exp(_smooth(reference)) * said).sum(-1).mean())


def _smooth(logprobs: Answers) -> Answers:
    shares = softmax(np.asarray(logprobs, dtype=np.float64), axis=-1)
    found: Answers = np.log((1 - UNIFORM) * shares + UNIFORM / shares.shape[-1])
    return found


def _with_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return mean, float("nan"), float("nan")
    half = float(student.ppf(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count))
    return mean, mean - half, mean + half


def accuracy(answers: Answers, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """At each number of shots: [shots]."""
    found: NDArray[np.float64] = (answers.argmax(-1) == labels).mean(1)
    return found


def log_odds(answers: Answers, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean log-odds of the right label at each number of shots: [shots]."""
    shares = np.exp(_smooth(answers))[:, np.arange(len(labels)), labels]
    found: NDArray[np.float64] = (np.log(shares) - np.log1p(-shares)).mean(1)
    return found
