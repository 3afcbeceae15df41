"""Is what is planted found, and only that? Every hypothesis in every other's plant.

    python -m benchmarks.plants [--model embedded] [--task embedded-sst2]... [--episodes 20] [--out folder]

A plant is the model that a hypothesis has changed, read after a context without labels: a reference whose mechanism is
known. Studies are five episodes drawn from those that were run; each is judged by the rule of the verdict, with the
plant in the place of in-context learning and the plant of the same hypothesis as the target.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from dualscope import Bench, Episode, Model, Task, make_lesson
from dualscope.core.learning import Learning
from dualscope.core.response_products import plant_name
from dualscope.core.statistics import holm
from dualscope.findings.response_rule import FOUND, OverSeeds, decide
from dualscope.findings.response_test import EpisodePair, repairing_test
from dualscope.learners import LEARNERS
from dualscope.learners.controls import identify
from dualscope.learners.response_bench import ResponseBench
from dualscope.metrics.response.measured_response import ResponseMeter

PLANTED = ("gd", "lcgd", "gd-all", "task-vector")
RIVALS = ("probe", "kernel")
STUDIES, SEEDS = 200, 5
Pairs = dict[tuple[str, str, str], list[EpisodePair | None]]
"""By plant, hypothesis and part: a pair an episode."""


def measured(model: Model, task: Task, episodes: int, rates: dict[str, float], **how: Any) -> Pairs:
    found: Pairs = {}
    queries = how.pop("queries")
    for seed in range(episodes):
        episode = Episode.draw(task, seed=seed, queries=queries, balanced=True, **how)
        bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
        meter = ResponseMeter(ResponseBench(bench))
        learners = {name: who(name, rates) for name in (*PLANTED, *RIVALS)}
        for plant in PLANTED:
            reference = meter.planted(learners[plant])
            for name, learning in learners.items():
                parts = list(meter._compared(plant_name(plant), reference, meter.of(learning), False))
                for kind in ("answers", "outputs"):
                    own = tuple(part for part in parts if part.part == kind)
                    pair = EpisodePair(own, reference.levels) if own else None
                    found.setdefault((plant, name, kind), []).append(pair)
        print(f"{task.name} seed {seed}", flush=True)
    return found


def who(name: str, rates: dict[str, float]) -> Learning:
    return identify(name, rate=rates.get(name, rates["gd"]) if LEARNERS[name].needs_rate else None)


def values_of(pairs: Pairs, plant: str, name: str, kind: str) -> np.ndarray:
    return np.array([np.nan if pair is None else pair.plain for pair in pairs[plant, name, kind]])


def studied(pairs: Pairs, kind: str) -> list[dict[str, Any]]:
    """Of each plant: how often it is strongest on its own, and how often which family is called what."""
    families = {name: LEARNERS[name].family for name in (*PLANTED, *RIVALS)}
    names = [n for n in (*PLANTED, *RIVALS) if np.isfinite(values_of(pairs, "gd", n, kind)).any()]
    rng = np.random.default_rng(0)
    found = []
    for plant in PLANTED:
        values = {name: values_of(pairs, plant, name, kind) for name in names}
        own = OverSeeds.of(list(values[plant])).mean
        strongest = np.mean(
            [max(names, key=lambda n: values[n][i]) == plant for i in range(len(values[plant]))]
        )
        words: dict[str, list[str]] = {name: [] for name in names}
        for _ in range(STUDIES):
            seeds = rng.choice(len(values[plant]), SEEDS, replace=False)
            tests = {}
            for name in names:
                some = [pair for i in seeds if (pair := pairs[plant, name, kind][i]) is not None]
                tests[name] = repairing_test(some, seed=int(seeds[0]), count=199)
            adjusted = holm({name: test.p for name, test in tests.items()})
            for name in names:
                target = (
                    values_of(pairs, name, name, kind) if name in PLANTED else np.ones(len(values[plant]))
                )
                planted = OverSeeds.of(list(target[seeds])).mean
                rivals = {o: list(values[o][seeds]) for o in names if families[o] != families[name]}
                word = "cannot tell"
                if name not in PLANTED or planted >= FOUND:
                    word = decide(
                        list(values[name][seeds]), list(target[seeds]), adjusted[name], rivals=rivals
                    ).word
                words[name].append(word)
        found.append(
            {
                "plant": plant,
                "part": kind,
                "r": {name: OverSeeds.of(list(values[name])).mean for name in names},
                "own": own,
                "strongest": float(strongest),
                "alike": {name: words[name].count("alike") / STUDIES for name in names},
                "same family": [n for n in names if families[n] == families[plant]],
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", action="append")
    parser.add_argument("--data")
    parser.add_argument("--labels", default="gold")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rate", action="append", default=[], help="gd=1.0")
    parser.add_argument("--out", type=Path, default=Path("plants"))
    asked = parser.parse_args()
    model = Model.load(asked.model, dtype="float32")
    rates = {"gd": 1.0, "gd-all": 0.1} | {
        name: float(rate) for name, rate in (one.split("=") for one in asked.rate)
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.task or ["embedded-sst2", "embedded-agnews"]:
        began = time.perf_counter()
        task = Task.load(name, data=asked.data)
        how: dict[str, Any] = {"shots": asked.shots, "queries": asked.queries, "demo_labels": asked.labels}
        pairs = measured(model, task, asked.episodes, rates, **how)
        rows = [row for kind in ("answers", "outputs") for row in studied(pairs, kind)]
        (asked.out / f"{task.name}.json").write_text(json.dumps(rows, indent=1))
        for row in rows:
            shown = " ".join(f"{key} {value:.2f}" for key, value in row["r"].items())
            alike = " ".join(f"{key} {value:.2f}" for key, value in row["alike"].items())
            print(
                f"{task.name} {row['part']:8} plant {row['plant']:11} strongest {row['strongest']:.2f} | r {shown}"
            )
            print(f"{'':34} alike {alike}")
        print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
