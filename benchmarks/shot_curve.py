"""Evidence that adds up, or descent: whose answers over 1 to 32 shots predict in-context learning's? From a run folder.

    dualscope run benchmarks/studies/shot-curve.yaml --out runs/shot-curve
    python -m benchmarks.shot_curve runs/shot-curve [--out docs/data/shot-curve.md]

Each learner's answers, with one scale and one prior of the labels at all numbers of shots, are a model of in-context
learning's; what is shown is how likely its answers are to queries that these were not fitted on (nats a query). Below
stands how often the method finds each learner where that learner's own answers, rescaled and with noise, take
in-context learning's place.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.tables import table
from dualscope import Run
from dualscope.findings.shot_curve import Answers, accuracy, log_odds, select
from dualscope.report.subject import label_of

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
    return logits + NOISE * rng.normal(size=answers.shape)


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
