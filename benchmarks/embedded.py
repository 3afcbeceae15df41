"""The figures of the embedded model's card: every embedded task, 32 shots, 500 queries, 3 seeds.

    python -m benchmarks.embedded [--model embedded] [--task NAME]... [--queries 500] [--seeds 3] [--json FILE]

For each task: zero-shot, in-context and GD accuracy (GD at the automatic rate), in-context accuracy with flipped labels
where there are two classes, and the untrained variants. ``check`` is the same on the first 100 queries of seed 0, which
a test can repeat. The last lines say which of the wanted bounds hold.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from dualscope.learners import choose_settings
from dualscope.learners.bench import Bench
from dualscope.models import Model
from dualscope.models.reading.trace import Trace
from dualscope.tasks import Episode, Task, catalog_names, make_lesson

UNTRAINED = ("untrained", "trained-embeddings")


CHECKED = 100  # queries of seed 0 that a test computes again


def accuracy(trace: Trace, first: int | None = None) -> float:
    return float((trace.predictions == trace.labels)[:first].double().mean())


def measure_task(name: str, source: str, model: Model, seeds: range, queries: int, shots: int = 32) -> dict[str, Any]:
    """One row of the card."""
    task = Task.load(name)
    choice = choose_settings(model, task, "gd", seeds, shots, queries=queries)
    rate = choice.settings["lr"]
    found: dict[str, list[float]] = {}
    check: dict[str, float] = {}
    for seed in seeds:
        episode = Episode.draw(task, shots, seed, queries)
        lesson = make_lesson(episode, model.tokenizer, model.max_positions)
        bench = Bench(model, lesson)
        traces = {"zero-shot": bench.zero_shot, "in-context": bench.in_context, "gd": bench.learned("gd", rate).trace}
        for kind, trace in traces.items():
            found.setdefault(kind, []).append(accuracy(trace))
            check.setdefault(kind, round(accuracy(trace, CHECKED), 4))  # of the first seed
        if len(task.labels) == 2:
            flipped = Episode.draw(task, shots, seed, queries, demo_labels="flipped")
            other = Bench(model, make_lesson(flipped, model.tokenizer, model.max_positions))
            found.setdefault("in-context, flipped", []).append(accuracy(other.in_context))
        for variant in UNTRAINED:
            twin = Bench(Model.load(source, variant=variant, init_seed=seed), lesson)
            found.setdefault(f"{variant}, in-context", []).append(accuracy(twin.in_context))
            found.setdefault(f"{variant}, zero-shot", []).append(accuracy(twin.zero_shot))
    means = {kind: round(float(np.mean(values)), 4) for kind, values in found.items()}
    return {
        "task": name,
        "chance": round(1 / len(task.labels), 4),
        "lr": rate,
        "at_edge": choice.at_edge,
        **means,
        "check": check,
        "curve": choice.curve,
        "per_seed": {kind: [round(value, 4) for value in values] for kind, values in found.items()},
    }


def bounds(rows: list[dict[str, Any]], queries: int) -> dict[str, bool]:
    """What the model is held to; see the card."""
    mean = {kind: float(np.mean([row[kind] for row in rows])) for kind in ("chance", "zero-shot", "in-context", "gd")}
    two = [row for row in rows if "in-context, flipped" in row]
    untrained = [
        binom.ppf(0.005, queries, row["chance"]) <= value * queries <= binom.ppf(0.995, queries, row["chance"])
        for row in rows
        for kind, values in row["per_seed"].items()
        if kind.startswith(UNTRAINED)
        for value in values
    ]
    return {
        f"in-context {mean['in-context']:.3f} >= 0.90": mean["in-context"] >= 0.90,
        f"zero-shot {mean['zero-shot']:.3f} >= chance {mean['chance']:.3f} + 0.05": mean["zero-shot"]
        >= mean["chance"] + 0.05,
        "zero-shot is 0.20 or more below in-context": mean["zero-shot"] <= mean["in-context"] - 0.20,
        f"gd {mean['gd']:.3f} >= zero-shot + 0.10": mean["gd"] >= mean["zero-shot"] + 0.10,
        "flipped labels: 2-class in-context <= 0.35": all(row["in-context, flipped"] <= 0.35 for row in two),
        f"untrained at chance: {sum(untrained)} of {len(untrained)} in the 99 % interval": all(untrained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", action="append", help="of the embedded tasks; all of them if not given")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = Model.load(options.model)
    rows: list[dict[str, Any]] = []
    for name in options.task or [name for name in catalog_names() if name.startswith("embedded-")]:
        rows.append(measure_task(name, options.model, model, range(options.seeds), options.queries))
        print(
            json.dumps({key: value for key, value in rows[-1].items() if key not in ("per_seed", "curve")}), flush=True
        )
    held = bounds(rows, options.queries)
    for said, holds in held.items():
        print(f"{'holds' if holds else 'FAILS'}: {said}")
    if options.json:
        facts = {"queries": options.queries, "seeds": options.seeds, "shots": 32, "tasks": rows, "bounds": held}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
