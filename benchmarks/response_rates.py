"""What the response's rule promises, simulated: false answers of learners that have nothing in common, and power.

    python -m benchmarks.response_rates [--studies 400] [--out table.md]

Learners are made, not trained: each responds to the labels s_i of n demonstrations with weights w[query, i] of its own.
The products, the re-pairings, Holm's correction and the rule are the package's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualscope.core.response_products import ComparedPart, Copying, Products
from dualscope.core.statistics import holm
from dualscope.core.words import LEVELS
from dualscope.findings.response_decision import ALPHA, Decision, EpisodePair, decide, repairing_test
from dualscope.tasks.relabelling import relabellings

DEMONSTRATIONS, QUERIES, DRAWS = 16, 50, 12
NOISE = 0.5  # of a response, as a share of its size
PLANT, RELIABILITY = 0.85, 0.75
Rng = np.random.Generator


@dataclass(frozen=True)
class World:
    """One episode: which label stands where in each draw, and what all learners may share."""

    labels: np.ndarray  # [draws, demonstrations], -1 or 1
    gold: np.ndarray  # [demonstrations]
    reference: np.ndarray  # w of in-context learning: [queries, demonstrations]
    copied: np.ndarray  # how much each query copies each place: [queries, demonstrations]


Make = Callable[[World, Rng], tuple[np.ndarray, np.ndarray, list[np.ndarray]]]
"""R, S and the sets of P: [draws, queries] each."""


def world(rng: Rng) -> World:
    gold = [0, 1] * (DEMONSTRATIONS // 2)
    drawn = relabellings(gold, DRAWS, seed=int(rng.integers(2**31)))
    rows = [[gold[place] for place in places] for _, places in drawn]
    shape = (QUERIES, DEMONSTRATIONS)
    place = np.exp(-0.5 * np.arange(DEMONSTRATIONS)[::-1])  # the last labels are copied most
    copied = place * (1 + 0.5 * rng.standard_normal((QUERIES, 1)))
    return World(2 * np.array(rows) - 1, 2 * np.array(gold) - 1, rng.standard_normal(shape), copied)


def responds(world: World, weights: np.ndarray, rng: Rng) -> np.ndarray:
    clean = world.labels @ weights.T
    found: np.ndarray = clean + NOISE * clean.std() * rng.standard_normal(clean.shape)
    return found


def nothing(_: World, rng: Rng) -> list[np.ndarray]:
    return [rng.standard_normal((DRAWS, QUERIES)) for _ in range(4)]


def independent(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    return (rng.standard_normal((DRAWS, QUERIES)), rng.standard_normal((DRAWS, QUERIES)), nothing(here, rng))


def unrelated_weights(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    other = rng.standard_normal(here.reference.shape)
    return responds(here, here.reference, rng), responds(here, other, rng), nothing(here, rng)


def queries_permuted(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    other = here.reference[rng.permutation(QUERIES)]
    return responds(here, here.reference, rng), responds(here, other, rng), nothing(here, rng)


def label_quality(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Both answer the better the more labels are right; which ones they are does not matter."""
    right = (here.labels == here.gold).sum(1)[:, None]
    both = [right * (1 + rng.standard_normal(QUERIES)) for _ in range(2)]
    noisy = [one + 0.3 * one.std() * rng.standard_normal(one.shape) for one in both]
    return noisy[0], noisy[1], nothing(here, rng)


def last_label(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Both shift towards the last label, each query by an amount of its own that all contexts share."""
    shift = here.labels[:, -1:] * (1 + rng.standard_normal(QUERIES))

    def noisy() -> np.ndarray:
        found: np.ndarray = shift + 0.3 * shift.std() * rng.standard_normal(shift.shape)
        return found

    return noisy(), noisy(), [noisy() for _ in range(4)]


def copier(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """ICL copies and learns, the learner only copies."""
    learns = here.reference * (here.copied.std() / here.reference.std()) + here.copied
    copies = [responds(here, here.copied, rng) for _ in range(5)]
    return responds(here, learns, rng), copies[0], copies[1:]


def alike(share: float) -> Make:
    """A learner whose weights have this correlation with in-context learning's, before noise."""

    def make(here: World, rng: Rng) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        other = rng.standard_normal(here.reference.shape)
        own = share * here.reference + np.sqrt(1 - share**2) * other
        return responds(here, here.reference, rng), responds(here, own, rng), nothing(here, rng)

    return make


NULLS: dict[str, Make] = {
    "independent responses": independent,
    "same draws, unrelated weights": unrelated_weights,
    "S's queries permuted": queries_permuted,
    "both respond to label quality": label_quality,
    "both respond to the last label": last_label,
    "a copier, ICL copies and learns": copier,
}


def pair_of(reference: np.ndarray, own: np.ndarray, sets: list[np.ndarray]) -> EpisodePair:
    levels = tuple(level for level in LEVELS for _ in range(DRAWS // 2))

    def part(values: np.ndarray) -> np.ndarray:
        found = values.reshape(2, DRAWS // 2, QUERIES)
        found = (found - found.mean(1, keepdims=True)).reshape(DRAWS, QUERIES)
        function: np.ndarray = found - found.mean(1, keepdims=True)
        return function

    def products(one: np.ndarray, other: np.ndarray) -> Products:
        return Products(one @ other.T, one.T @ other, float((one**2).sum()), float((other**2).sum()))

    r, s, p = part(reference), part(own), [part(one) for one in sets]
    pairs = [(i, j) for i in range(len(p)) for j in range(i)]
    sizes = [float((p[i] * p[j]).sum()) for i, j in pairs]
    agreement = [
        size / np.sqrt((p[i] ** 2).sum() * (p[j] ** 2).sum()) for size, (i, j) in zip(sizes, pairs, strict=True)
    ]
    mean = np.mean(p, 0)
    copying = Copying(products(mean, s), float((r * mean).sum()), float(np.mean(sizes)), float(np.mean(agreement)))
    return EpisodePair((ComparedPart("in-context", "answers", None, products(r, s), copying),), levels)


def study(make: Make, tasks: int, hypotheses: int, seeds: int, rng: Rng, count: int) -> list[tuple[Decision, float]]:
    """The decision on every task and hypothesis of one simulated study, and its p-value after Holm."""
    drafts = []
    for _task in range(tasks):
        worlds = [world(rng) for _ in range(seeds)]
        for _learner in range(hypotheses):
            episodes = [pair_of(*make(here, rng)) for here in worlds]
            test = repairing_test(episodes, seed=int(rng.integers(2**31)), count=count)
            targets = np.clip(PLANT * np.sqrt(RELIABILITY) + 0.05 * rng.standard_normal(seeds), 0, 1)
            drafts.append(([episode.value for episode in episodes], targets, test))
    adjusted = holm({str(i): test.p for i, (_, _, test) in enumerate(drafts)})
    return [
        (decide(values, list(targets), adjusted[str(i)], test.z, len(drafts)), adjusted[str(i)])
        for i, (values, targets, test) in enumerate(drafts)
    ]


def false_rates(make: Make, tasks: int, hypotheses: int, seeds: int, studies: int) -> tuple[float, float]:
    """The shares of studies in which any pair is called alike or partly alike, and in which the test alone rejects.

    They differ because a learner far below its target is called different, whatever the test says.
    """
    rng = np.random.default_rng([tasks, hypotheses, seeds])
    count = 199 if tasks * hypotheses == 1 else 1999
    called = rejected = 0
    for _ in range(studies):
        found = study(make, tasks, hypotheses, seeds, rng, count)
        called += any(one.word in ("alike", "partly alike") for one, _ in found)
        rejected += any(p < ALPHA for _, p in found)
    return called / studies, rejected / studies


def power(share: float, seeds: int, studies: int) -> dict[str, float]:
    """How often a learner of this true correlation gets which answer, alone on one task."""
    rng = np.random.default_rng([int(100 * share), seeds])
    words = [study(alike(share), 1, 1, seeds, rng, 199)[0][0].word for _ in range(studies)]
    return {word: words.count(word) / studies for word in ("alike", "partly alike", "different", "cannot tell")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    lines = [
        "| what they share is nothing | tasks | hypotheses | seeds | studies | falsely alike | the test rejects |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, make in NULLS.items():
        for tasks, hypotheses in ((1, 1), (6, 1), (1, 10), (6, 10)):
            for seeds in (3, 5):
                studies = asked.studies if tasks * hypotheses < 60 else max(20, asked.studies // 10)
                rates = false_rates(make, tasks, hypotheses, seeds, studies)
                shown = " | ".join(f"{rate:.3f}" for rate in rates)
                lines.append(f"| {name} | {tasks} | {hypotheses} | {seeds} | {studies} | {shown} |")
                print(lines[-1], flush=True)
    lines += ["", "| true r | seeds | alike | partly alike | different | cannot tell |", "|---|---|---|---|---|---|"]
    for share in (0.0, 0.25, 0.5, 0.9):
        for seeds in (3, 5, 10):
            found = power(share, seeds, asked.studies)
            lines.append(f"| {share:g} | {seeds} | " + " | ".join(f"{value:.2f}" for value in found.values()) + " |")
            print(lines[-1], flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
