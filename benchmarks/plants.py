"""Is what is planted found, and only that? Every hypothesis in every other's plant.

    python -m benchmarks.plants [--model embedded] [--task embedded-sst2]... [--episodes 20] [--jobs 2] [--out folder]

A plant is the model that a hypothesis has changed, read after a context without labels: a reference whose mechanism is
known. Studies are five episodes drawn from those that were run; each is judged by the rule of the verdict, with the
plant in the place of in-context learning and the plant of the same hypothesis as the target.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch.multiprocessing import Pool, set_start_method

from dualscope import Bench, Episode, Model, Task, make_lesson
from dualscope.core.folder import Folder
from dualscope.core.response_products import parts_of, plant_name, table_of
from dualscope.core.spec import LearnerSpec
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
KINDS = ("answers", "outputs")


def measured(asked: argparse.Namespace, name: str, rates: dict[str, float]) -> Pairs:
    """Every episode of a task, ``asked.jobs`` at once; what an earlier call has left in the folder is taken."""
    found: Pairs = {}
    with Pool(asked.jobs) as pool:
        files = pool.imap(_Episode(asked, name, rates), range(asked.episodes), chunksize=1)
        tables = [pq.read_table(file) for file in files]
    for table in tables:
        for plant, hypothesis in product(PLANTED, (*PLANTED, *RIVALS)):
            chosen = pc.and_(pc.equal(table["plant"], plant), pc.equal(table["hypothesis"], hypothesis))
            parts, levels = parts_of(table.filter(chosen))
            for kind in KINDS:
                own = tuple(part for part in parts if part.part == kind)
                found.setdefault((plant, hypothesis, kind), []).append(
                    EpisodePair(own, levels) if own else None
                )
    return found


@dataclass(frozen=True)
class _Episode:
    """Measures one episode into a file; made for a pool, whose processes load the model themselves."""

    asked: argparse.Namespace
    task: str
    rates: dict[str, float]

    def __call__(self, seed: int) -> Path:
        asked = self.asked
        task = Task.load(self.task, data=asked.data)
        file: Path = asked.out / f"{task.name}-{seed}.parquet"
        if file.exists():
            return file
        torch.set_num_threads(1)
        model = Model.load(asked.model, device=asked.device, dtype="float32")
        episode = Episode.draw(
            task, seed=seed, shots=asked.shots, queries=asked.queries, demo_labels=asked.labels, balanced=True
        )
        bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
        meter = ResponseMeter(ResponseBench(bench))
        learners = {name: who(name, self.rates) for name in (*PLANTED, *RIVALS)}
        tables = []
        for plant in PLANTED:
            reference = meter.planted(learners[plant])
            for name, learning in learners.items():
                parts = meter._compared(plant_name(plant), reference, meter.of(learning), False)
                table = table_of(parts, reference.levels)
                for column, value in (("plant", plant), ("hypothesis", name)):
                    table = table.append_column(column, pa.array([value] * len(table)))
                tables.append(table)
        Folder(asked.out).write_by(file.name, lambda aside: pq.write_table(pa.concat_tables(tables), aside))
        print(f"{task.name} seed {seed}", flush=True)
        return file


def who(name: str, rates: dict[str, float]) -> LearnerSpec:
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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="episodes at once, a core each")
    asked = parser.parse_args()
    rates = {"gd": 1.0, "gd-all": 1e-5} | {
        name: float(rate) for name, rate in (one.split("=") for one in asked.rate)
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.task or ["embedded-sst2", "embedded-agnews"]:
        began = time.perf_counter()
        task = Task.load(name, data=asked.data)
        pairs = measured(asked, name, rates)
        rows = [row for kind in KINDS for row in studied(pairs, kind)]
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
    set_start_method("spawn")  # a forked process cannot use a GPU
    main()
