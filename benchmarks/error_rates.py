"""What the verdict's rule promises, simulated: coverage, false answers, and the power to find an effect.

    python -m benchmarks.error_rates [--run RUN]

Tables of nothing (or of an effect) are drawn with the spread of seeds, of queries and of both, and put through
the rule's own estimate and correction. With ``--run`` the spread is that of a run: of gd less gd under random labels.
"""

from __future__ import annotations

import argparse

import numpy as np

from dualscope.core.estimate import Estimate
from dualscope.core.statistics import holm
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.findings.stored import StoredCell
from dualscope.report.source import ReportedRun

SEEDS = (3, 5, 8, 10)
Spread = tuple[float, float, float]  # seeds, queries, both together
USUAL: Spread = (0.05, 0.05, 0.2)


def drawn(rng: np.random.Generator, seeds: int, queries: int, spread: Spread, effect: float) -> Estimate:
    by_seed, by_query, both = spread
    values = by_seed * rng.standard_normal((seeds, 1)) + by_query * rng.standard_normal((1, queries))
    return Estimate.of(effect + values + both * rng.standard_normal((seeds, queries)))


def said_above(parts: list[Estimate]) -> list[bool]:
    adjusted = holm({str(i): one.p for i, one in enumerate(parts)})
    return [one.mean > 0 and adjusted[str(i)] < 0.05 for i, one in enumerate(parts)]


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


def spread_of(place: str) -> list[tuple[str, Spread, int]]:
    """By model and task: how a difference of likenesses varies over seeds, queries and both."""
    source = ReportedRun(place)
    cells = [cell for cell in source.cells if _is_wanted(cell)]
    evidence = Evidence.collect([(cell.columns, source.run.queries(cell.id)) for cell in cells])
    found = []
    for setting, made in evidence.items():
        for task in made.tasks:
            plain = [who for who in made.learnings(task) if who.name == "gd" and who.control is None]
            for gd in plain:
                own, other = (
                    EvidenceKey(task, "trained", who, "sim_aou") for who in (gd, gd.under("random-labels"))
                )
                left, right = made.pair(own, other)
                if left.size:
                    found.append((f"{setting.model} {task}", components(left - right), left.shape[1]))
    return found


def components(values: np.ndarray) -> Spread:
    """Standard deviations of seeds, of queries, and of what is left, by the method of moments."""
    seeds, queries = values.mean(1), values.mean(0)
    rest = values - seeds[:, None] - queries + values.mean()
    both = (rest**2).sum() / ((values.shape[0] - 1) * (values.shape[1] - 1))
    by_seed = max(0.0, seeds.var(ddof=1) - both / values.shape[1])
    by_query = max(0.0, queries.var(ddof=1) - both / values.shape[0])
    return float(by_seed**0.5), float(by_query**0.5), float(both**0.5)


def _is_wanted(cell: StoredCell) -> bool:
    columns = cell.columns
    return columns["variant"] == "trained" and (
        columns["learner"] == "gd" and columns["control"] in (None, "random-labels")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="a run folder to take the spread from")
    parser.add_argument("--draws", type=int, default=1500)
    parser.add_argument("--effect", type=float, default=0.1)
    options = parser.parse_args()
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
