"""What the verdict's rule promises, simulated: coverage, false answers, and the power to find an effect.

    python -m benchmarks.error_rates [--run RUN]

Tables of nothing (or of an effect) are drawn with the spread of seeds, of queries and of both, and put through
the rule's own estimate and correction. With ``--run`` the spread is that of a run: of gd less gd under random labels.
Whole studies of many learners, skewed seeds, and accuracies at the gates are put through the whole rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dualscope.core.estimate import Estimate
from dualscope.core.spec import IN_CONTEXT, PLAIN, ZERO_SHOT, CellSpec, LearnerSpec
from dualscope.core.statistics import sign_test
from dualscope.findings.answer import ALPHA, PRIMARY, SMALL
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.findings.verdict import verdict
from dualscope.report.reported_run import ReportedRun

SEEDS = (3, 5, 8, 10)
Spread = tuple[float, float, float]  # seeds, queries, both together
USUAL: Spread = (0.05, 0.05, 0.2)


def drawn(rng: np.random.Generator, seeds: int, queries: int, spread: Spread, effect: float) -> Estimate:
    by_seed, by_query, both = spread
    values = by_seed * rng.standard_normal((seeds, 1)) + by_query * rng.standard_normal((1, queries))
    return Estimate.of(effect + values + both * rng.standard_normal((seeds, queries)))


def said_above(parts: list[Estimate]) -> list[bool]:
    """Of tasks that are asked together."""
    return [one.mean > 0 and one.p * len(parts) < ALPHA and sign_test(one.each) < ALPHA for one in parts]


def row(seeds: int, queries: int, spread: Spread, draws: int, effect: float) -> dict[str, float]:
    rng = np.random.default_rng(seeds)
    alone = [drawn(rng, seeds, queries, spread, 0.0) for _ in range(draws)]
    six = [[drawn(rng, seeds, queries, spread, 0.0) for _ in range(6)] for _ in range(draws // 3)]
    found = [drawn(rng, seeds, queries, spread, effect) for _ in range(draws)]
    among = [[drawn(rng, seeds, queries, spread, effect) for _ in range(6)] for _ in range(draws // 3)]
    return {
        "coverage": float(np.mean([one.interval.low <= 0 <= one.interval.high for one in alone])),
        "false, 1 task": float(np.mean([said_above([one])[0] for one in alone])),
        "false, any of 6": float(np.mean([any(said_above(parts)) for parts in six])),
        "power, 1 task": float(np.mean([said_above([one])[0] for one in found])),
        "power, 6 tasks": float(np.mean([np.mean(said_above(parts)) for parts in among])),
    }


@dataclass(frozen=True)
class Made:
    """A study that is made up: every learner has the same truth on every task."""

    seeds: int = 5
    tasks: int = 1
    learners: int = 1
    queries: int = 40
    apart: float = 0.0
    """How far a learner is above its controls: above one of them, or (``alike``) above every one."""
    alike: bool = False
    shape: str = "normal"
    spread: Spread = (0.05, 0.01, 0.05)
    zero_shot: float = 0.5
    random_labels: float = 0.5
    """Accuracies, where guessing has .5."""

    def evidence(self, rng: np.random.Generator) -> Evidence:
        tasks = [f"task {i}" for i in range(self.tasks)]
        made = Evidence(chance=dict.fromkeys(tasks, 0.5))
        queries = [f"query:{i}" for i in range(self.queries)]
        learners = [LearnerSpec(PLAIN, lr=0.1 * (i + 1)) for i in range(self.learners)]
        for who in learners:
            made.roles[who] = "hypothesis"
        for task in tasks:
            by_query = self.spread[1] * rng.standard_normal(self.queries)
            rows = {who: self._differences(rng) + by_query for who in learners}
            for seed in range(self.seeds):

                def put(variant: str, who: LearnerSpec, metric: str, values: np.ndarray) -> None:
                    made.add(EvidenceKey(task, variant, who, metric), seed, queries, values)  # noqa: B023

                def right(accuracy: float) -> np.ndarray:
                    return (rng.random(self.queries) < accuracy).astype(float)

                put("trained", ZERO_SHOT, "correct", right(self.zero_shot))
                put("trained", IN_CONTEXT, "correct", right(0.9))
                for who in learners:
                    put("trained", who, "correct", right(0.9))
                    put("trained", who.under("random-labels"), "correct", right(self.random_labels))
                    own = 0.5 + 0.02 * rng.standard_normal(self.queries)
                    put("trained", who, PRIMARY, own)
                    for name, less in zip(CONTROLS, rows[who][:, seed], strict=True):
                        metric, variant, whose = PRIMARY, "trained", who
                        if name == "mismatched":
                            metric = "sim_aou_mismatched"
                        elif name == "untrained":
                            variant = "untrained"
                        elif name in ("random-labels", "other-task", "random-update"):
                            whose = who.under(name)  # type: ignore[arg-type]
                        else:  # one null for all learners
                            whose = LearnerSpec(name)
                            made.roles[whose] = "null"
                            if who != learners[0]:
                                continue
                        put(variant, whose, metric, own - less)
        return made

    def _differences(self, rng: np.random.Generator) -> np.ndarray:
        """[controls, seeds, queries]: above the random labels by ``apart``, and above all others far, or as much."""
        by_seed, _, both = self.spread
        rest = self.apart if self.alike else 0.4
        levels = np.array([self.apart if name == "random-labels" else rest for name in CONTROLS])
        seeds = by_seed * SHAPES[self.shape](rng, (len(CONTROLS), self.seeds))
        noise = both * rng.standard_normal((len(CONTROLS), self.seeds, self.queries))
        found: np.ndarray = levels[:, None, None] + seeds[..., None] + noise
        return found


CONTROLS = ("untrained", "random-update", "mismatched", "random-labels", "other-task", "zero-shot-offset", "dilution")
Shape = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
SHAPES: dict[str, Shape] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "few high": lambda rng, size: rng.exponential(size=size) - np.log(2),
    "few low": lambda rng, size: np.log(2) - rng.exponential(size=size),
    "one in five far up": lambda rng, size: 4.0 * (rng.random(size) < 0.2) + 0.1 * rng.standard_normal(size),
    "one in five far down": lambda rng, size: -4.0 * (rng.random(size) < 0.2) + 0.1 * rng.standard_normal(size),
    "mean 0, few low": lambda rng, size: 1 - rng.exponential(size=size),
    "mean 0, one in five far down": lambda rng, size: 0.8 - 4.0 * (rng.random(size) < 0.2),
}
"""How seeds vary, in units of their spread. The median is 0 except where it says that the mean is."""


def said(made: Made, word: str, studies: int, seed: int = 0) -> float:
    """In what share of studies some learner on some task gets this answer."""
    rng = np.random.default_rng(seed)
    return float(np.mean([any(a.answer == word for a in verdict(made.evidence(rng)).answers) for _ in range(studies)]))


def learned(seeds: int, queries: int, low: float, high: float, studies: int = 300) -> float:
    """In what share of studies a gain that lies between two ends in every seed passes the gate."""
    rng = np.random.default_rng(seeds)
    passed = 0
    for _ in range(studies):
        hard = rng.random(queries)
        gains = rng.uniform(low, high, (seeds, 1))
        before = (hard < 0.5) ^ (rng.random((seeds, queries)) < 0.1)
        after = before | (rng.random((seeds, queries)) < 2 * gains)
        passed += Estimate.of(after.astype(float) - before).interval.low > 0
    return passed / studies


def spread_of(place: str) -> list[tuple[str, Spread, int]]:
    """By model and task: how a difference of likenesses varies over seeds, queries and both."""
    source = ReportedRun(place)
    cells = {name: cell for name, cell in source.cells.items() if _is_wanted(cell)}
    evidence = Evidence.collect([(cell, source.run.queries(name)) for name, cell in cells.items()])
    found = []
    for setting, made in evidence.items():
        for task in made.tasks:
            plain = [who for who in made.learnings(task) if who.name == "gd" and who.control is None]
            for gd in plain:
                own, other = (EvidenceKey(task, "trained", who, "sim_aou") for who in (gd, gd.under("random-labels")))
                left, right = made.pair(own, other)
                if left.size:
                    found.append((f"{setting.model.name} {task}", components(left - right), left.shape[1]))
    return found


def components(values: np.ndarray) -> Spread:
    """Standard deviations of seeds, of queries, and of what is left, by the method of moments."""
    seeds, queries = values.mean(1), values.mean(0)
    rest = values - seeds[:, None] - queries + values.mean()
    both = (rest**2).sum() / ((values.shape[0] - 1) * (values.shape[1] - 1))
    by_seed = max(0.0, seeds.var(ddof=1) - both / values.shape[1])
    by_query = max(0.0, queries.var(ddof=1) - both / values.shape[0])
    return float(by_seed**0.5), float(by_query**0.5), float(both**0.5)


def _is_wanted(cell: CellSpec) -> bool:
    return cell.episode.model.variant == "trained" and cell.learning.written in ("gd", "gd/random-labels")


def tables(studies: int) -> Iterator[str]:
    """What the whole rule promises, in Markdown."""
    heads = ["seeds", "how seeds vary", "false above, 1 learner", "any of 10 learners x 3 tasks", "false not above"]
    yield "| " + " | ".join([*heads, "an effect of .2 found"]) + " |"
    yield "|" + "---|" * 6
    for seeds in (5, 10):
        for shape in SHAPES:
            made = Made(seeds=seeds, shape=shape)
            many = replace(made, learners=10, tasks=3, queries=20)
            margin = replace(made, apart=SMALL, alike=True)
            found = [
                said(made, "above the controls", studies),
                said(many, "above the controls", max(20, studies // 2)),
                said(margin, "not above", studies),
                said(replace(made, apart=0.2), "above the controls", studies),
            ]
            yield f"| {seeds} | {shape} | " + " | ".join(f"{value:.3f}" for value in found) + " |"
    below = Made(zero_shot=0.3, random_labels=0.5)
    yield ""
    share = said(below, "above the controls", studies)
    yield f"zero-shot at .3, random labels at .5 and as like as the learner: above in {share:.3f} of studies"
    for queries in (40, 100):
        share = learned(5, queries, 0.18, 0.26)
        yield f"ICL gains .18 to .26 in each of 5 seeds, {queries} queries: learned in {share:.3f} of studies"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="a run folder to take the spread from")
    parser.add_argument("--draws", type=int, default=1500)
    parser.add_argument("--effect", type=float, default=0.1)
    parser.add_argument("--studies", type=int, default=400, help="whole studies, each put through the whole rule")
    options = parser.parse_args()
    for line in tables(options.studies):
        print(line, flush=True)
    spreads = spread_of(options.run) if options.run else [("usual", USUAL, 60)]
    for name, spread, queries in spreads:
        sizes = ", ".join(f"{value:.3f}" for value in spread)
        print(f"\n{name}: standard deviation of seeds, of queries, of both: {sizes}; {queries} queries\n")
        heads: list[str] = []
        for seeds in SEEDS:
            found = row(seeds, queries, spread, options.draws, options.effect)
            if not heads:
                heads = ["seeds", *found]
                print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
            print(f"| {seeds} | " + " | ".join(f"{value:.3f}" for value in found.values()) + " |")


if __name__ == "__main__":
    main()
