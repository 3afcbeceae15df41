"""Evidence that adds up, or descent: whose answers over 1 to 32 shots predict in-context learning's? From a run folder.

    dualscope run benchmarks/studies/shot-curve.yaml --out runs/shot-curve
    python -m benchmarks.shot_curve runs/shot-curve [--out docs/data/shot-curve.md]

Each learner's answers, with one scale and one prior of the labels at all numbers of shots, are a model of in-context
learning's; what is shown is how likely its answers are to queries that these were not fitted on (nats a query). Below
stands how often the method finds each learner where that learner's own answers, rescaled and with noise, take
in-context learning's place.

Every candidate (a learner's answers at each number of shots) makes a model of in-context learning's answers: its own
log-probabilities times one number, with one prior of the labels, both the same at all numbers of shots. So the scale of
a candidate is free and the shape of its curve is not. They are fitted on some queries, and what counts is how likely
in-context learning's answers to the others are under them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from benchmarks.tables import table
from dualscope import Run
from dualscope.regression.results import interval
from dualscope.report.subject import label_of

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
        return {fit.name: interval(first - np.array(fit.each)) for fit in self.fits[1:]}


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


def accuracy(answers: Answers, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """At each number of shots: [shots]."""
    found: NDArray[np.float64] = (answers.argmax(-1) == labels).mean(1)
    return found


def log_odds(answers: Answers, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean log-odds of the right label at each number of shots: [shots]."""
    shares = np.exp(_smooth(answers))[:, np.arange(len(labels)), labels]
    found: NDArray[np.float64] = (np.log(shares) - np.log1p(-shares)).mean(1)
    return found


OPENING = """\
# Data: evidence or descent

Whose answers over 1 to 32 demonstrations predict in-context learning's ([items 70 and 71](../papers.md)): `dualscope
run benchmarks/studies/shot-curve.yaml --out runs/shot-curve`, then `python -m benchmarks.shot_curve runs/shot-curve
--out docs/data/shot-curve.md`. Each learner's answers, with one scale and one prior of the labels at all numbers of
shots, are a model of in-context learning's. *Held-out log-likelihood*: nats a query, on queries that these two were
not fitted on. *Found in its own answers*: how often the method names the learner where its own answers, rescaled and
with noise, take in-context learning's place (50 trials). Below: accuracy and the mean log-odds of the right label.

"""
ICL, TRIALS, NOISE = "in-context", 50, 0.5
Curves = dict[str, dict[int, dict[int, tuple[Answers, list[int]]]]]
"""By learner, seed and shots: log-probabilities [queries, classes], and the gold labels."""


def curves(run: Run) -> dict[tuple[str, str], Curves]:
    """Of every model and task of a run, what each learner answers at each number of shots."""
    found: dict[tuple[str, str], Curves] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for cell in sorted(run.stored()):
        row = run.read_rows(cell).slice(0, 1).to_pylist()[0]
        if row["control"] is not None or row["intervention"] is not None or row["variant"] != "trained":
            continue
        answers = run.queries(cell).sort_by("query")
        logprobs = np.array(answers["label_logprobs"].to_pylist())
        labels = answers["label"].to_pylist()
        found[row["model"], row["task"]][label_of(row)][row["seed"]][row["shots"]] = (logprobs, labels)
    return found


def stacked(of: Curves, name: str, shots: list[int]) -> list[Answers]:
    """A learner's answers, one array a seed: [shots, queries, classes]."""
    return [np.stack([by_shots[n][0] for n in shots]) for _, by_shots in sorted(of[name].items())]


def generated(rng: np.random.Generator, answers: Answers) -> Answers:
    """Answers of a model that is this learner, flatter or sharper, with a liking for a label and noise of its own."""
    logits = np.exp(rng.uniform(-0.7, 0.7)) * answers + 0.5 * rng.normal(size=answers.shape[-1])
    found: Answers = logits + NOISE * rng.normal(size=answers.shape)
    return found


def found_right(candidates: dict[str, list[Answers]], truth: str) -> float:
    """How often a learner is found in answers that are its own."""
    rng = np.random.default_rng(0)
    right = [
        select([generated(rng, own) for own in candidates[truth]], candidates).best == truth for _ in range(TRIALS)
    ]
    return float(np.mean(right))


def page(run: Run) -> str:
    parts = []
    for (model, task), of in curves(run).items():
        known = {seed: by_shots.keys() for seed, by_shots in of[ICL].items()}
        shots = sorted(set.intersection(*map(set, known.values())))
        names = [
            name
            for name, seeds in of.items()
            if name != ICL and seeds.keys() == known.keys() and all(set(shots) <= own.keys() for own in seeds.values())
        ]
        candidates = {name: stacked(of, name, shots) for name in names}
        reference = stacked(of, ICL, shots)
        labels = [np.array(by_shots[shots[0]][1]) for _, by_shots in sorted(of[ICL].items())]
        selection = select(reference, candidates)
        ahead = selection.ahead()
        rows = []
        for fit in selection.fits:
            behind = ahead.get(fit.name)
            words = "" if behind is None else f"{behind[0]:.3f} [{behind[1]:.3f}, {behind[2]:.3f}]"
            right = found_right(candidates, fit.name)
            rows.append([f"`{fit.name}`", f"{fit.mean:.3f}", words, f"{fit.scale:.2f}", f"{right:.2f}"])
        heads = ["learner", "held-out log-likelihood", "behind the first [95 %]", "scale", "found in its own answers"]
        parts.append(f"### {model}, {task}\n\n{table(heads, rows)}")
        lines = []
        for name, answers in ((ICL, reference), *candidates.items()):
            right = np.mean([accuracy(one, own) for one, own in zip(answers, labels, strict=True)], 0)
            odds = np.mean([log_odds(one, own) for one, own in zip(answers, labels, strict=True)], 0)
            lines.append([f"`{name}`", *(f"{a:.2f}, {o:+.2f}" for a, o in zip(right, odds, strict=True))])
        parts.append(table(["accuracy, log-odds", *(f"{n} shots" for n in shots)], lines))
    return "\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = page(Run.open(asked.run))
    if asked.out is None:
        print(text)
    else:
        asked.out.write_text(OPENING + text, encoding="utf-8")
