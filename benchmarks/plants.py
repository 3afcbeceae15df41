"""Is what is planted found, and only that? Every hypothesis in every other's plant.

    python -m benchmarks.plants [--model embedded] [--task embedded-sst2]... [--episodes 20] [--first 0] [--jobs 2]
        [--out folder]

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

from benchmarks.tables import table
from dualscope import Bench, Episode, Model, Task, make_lesson
from dualscope.core.folder import Folder
from dualscope.core.response_products import parts_of, plant_name, table_of
from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import holm
from dualscope.findings.response_decision import FLOOR, FOUND, IGNORED, EpisodePair, OverSeeds, decide, repairing_test
from dualscope.learners import LEARNERS
from dualscope.learners.controls import identify
from dualscope.learners.response_bench import ResponseBench, answer_vectors
from dualscope.metrics.measured_response import ResponseMeter
from dualscope.metrics.responses_of_draws import Responses, learned_share

PLANTED = ("gd", "lcgd", "gd-all", "task-vector", "task-vector above")
"""What is planted. ``above``: the vector put in after the layer that ``--layer`` names, in place of the one that was
chosen on spare examples."""
OPTIONS: dict[str, dict[str, Any]] = {"gd-all": {"loss": "label", "full_batch": True, "epochs": 10}}
"""All weights learn the inputs first, whatever the labels say: with the loss on all tokens labels have hardly a share
in its change. Epochs and rate were chosen on episodes 100 and 101 of embedded-agnews, none of the twenty."""
RIVALS = ("probe", "kernel")
STUDIES, SEEDS = 200, 5
Pairs = dict[tuple[str, str, str], list[EpisodePair | None]]
"""By plant, hypothesis and part: a pair an episode."""
Learned = dict[str, list[tuple[float, float]]]
"""By plant, an episode: the part of the answers' change that depends on the labels, of the learner and of its plant."""
KINDS = ("answers", "outputs")
SHARES = ("learned", "learned planted")  # columns


def measured(asked: argparse.Namespace, name: str, rates: dict[str, float]) -> tuple[Pairs, Learned]:
    """Every episode of a task, ``asked.jobs`` at once; what an earlier call has left in the folder is taken."""
    found: Pairs = {}
    learned: Learned = {}
    with Pool(asked.jobs) as pool:
        seeds = range(asked.first, asked.first + asked.episodes)
        files = pool.imap(_Episode(asked, name, rates), seeds, chunksize=1)
        tables = [pq.read_table(file) for file in files]
    for stored in tables:
        for plant in PLANTED:
            row = stored["plant"].to_pylist().index(plant)
            shares = tuple(stored[column][row].as_py() for column in SHARES)
            learned.setdefault(plant, []).append(shares)
        for plant, hypothesis in product(PLANTED, (*PLANTED, *RIVALS)):
            chosen = pc.and_(pc.equal(stored["plant"], plant), pc.equal(stored["hypothesis"], hypothesis))
            parts, levels = parts_of(stored.filter(chosen))
            for kind in KINDS:
                own = tuple(part for part in parts if part.part == kind)
                found.setdefault((plant, hypothesis, kind), []).append(EpisodePair(own, levels) if own else None)
    return found, learned


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
        learners = {name: who(name, self.rates, asked.layer) for name in (*PLANTED, *RIVALS)}
        tables = []
        for plant in PLANTED:
            reference = meter.planted(learners[plant])
            shares = [_learned(meter, one) for one in (meter.of(learners[plant]), reference)]
            for name, learning in learners.items():
                parts = meter._compared(plant_name(plant), reference, meter.of(learning), False)
                stored = table_of(parts, reference.levels)
                for column, value in (("plant", plant), ("hypothesis", name), *zip(SHARES, shares, strict=True)):
                    stored = stored.append_column(column, pa.array([value] * len(stored)))
                tables.append(stored)
        Folder(asked.out).write_by(file.name, lambda aside: pq.write_table(pa.concat_tables(tables), aside))
        print(f"{task.name} seed {seed}", flush=True)
        return file


def who(name: str, rates: dict[str, float], layer: int) -> LearnerSpec:
    name, _, above = name.partition(" ")
    rate = rates.get(name, rates["gd"]) if LEARNERS[name].needs_lr else None
    options = {"layer": layer} if above else OPTIONS.get(name, {})
    return identify(name, options, lr=rate)


def family_of(name: str) -> str | None:
    return LEARNERS[name.partition(" ")[0]].family


def _learned(meter: ResponseMeter, responses: Responses) -> float:
    """The learned share of the answers: what does not respond to labels cannot be looked for."""
    start = answer_vectors(meter.start.label_logprobs)
    return learned_share(responses.answers, start, responses.levels)


def values_of(pairs: Pairs, plant: str, name: str, kind: str) -> np.ndarray:
    return np.array([np.nan if pair is None else pair.plain for pair in pairs[plant, name, kind]])


def studied(pairs: Pairs, learned: Learned, kind: str) -> list[dict[str, Any]]:
    """Of each plant: how often it is strongest on its own, and how often which hypothesis is called what."""
    everyone = (*PLANTED, *RIVALS)
    values = {(p, n): values_of(pairs, p, n, kind) for p in PLANTED for n in everyone}
    names = [name for name in everyone if np.isfinite(values["gd", name]).any()]
    rng = np.random.default_rng(0)
    found = []
    for plant in PLANTED:
        own = {name: values[plant, name] for name in names}
        # The vector after another layer is the same hypothesis: it is not held against the plant.
        rivals = [n for n in names if n == plant or n.partition(" ")[0] != plant.partition(" ")[0]]
        strongest = np.mean([max(rivals, key=lambda n: own[n][i]) == plant for i in range(len(own[plant]))])
        words: dict[str, list[str]] = {name: [] for name in names}
        for _ in range(STUDIES):
            seeds = rng.choice(len(own[plant]), SEEDS, replace=False)
            tests = {}
            for name in names:
                some = [pair for i in seeds if (pair := pairs[plant, name, kind][i]) is not None]
                tests[name] = repairing_test(some, seed=int(seeds[0]), count=199)
            adjusted = holm({name: test.p for name, test in tests.items()})
            for name in names:
                words[name].append(_word(name, own, values, learned, seeds, adjusted[name], plant))
        found.append(
            {
                "plant": plant,
                "part": kind,
                "learned": [float(share) for share in np.mean(learned[plant], axis=0)],
                "r": {name: OverSeeds.of(list(own[name])).mean for name in names},
                "strongest": float(strongest),
                "words": {
                    name: {word: found.count(word) / STUDIES for word in sorted(set(found))}
                    for name, found in words.items()
                },
            }
        )
    return found


def _word(
    name: str,
    own: dict[str, np.ndarray],
    values: dict[tuple[str, str], np.ndarray],
    learned: Learned,
    seeds: np.ndarray,
    p: float,
    plant: str,
) -> str:
    """The rule of the verdict on one study, with the plant in the place of in-context learning."""
    if np.mean(np.array(learned[plant])[seeds, 1]) < IGNORED:  # what stands for in-context learning is the plant
        return "labels ignored"
    target = values[name, name][seeds] if name in PLANTED else np.ones(len(seeds))
    responds = name not in PLANTED or np.mean(np.array(learned[name])[seeds], axis=0).min() >= FLOOR
    if not responds or not OverSeeds.of(list(target)).mean >= FOUND:
        return "cannot tell"
    rivals = {other: list(own[other][seeds]) for other in own if family_of(other) != family_of(name)}
    return decide(list(own[name][seeds]), list(target), p, rivals=rivals).word


def shown(task: str, rows: list[dict[str, Any]]) -> str:
    """As docs/data/verdict.md has it: a line a plant and part."""
    heads = ["task", "part", "planted", "learned share", "of the plant", "r of its own", "next best r", "strongest in",
             "called alike", "another family alike"]  # fmt: skip
    lines = []
    for row in rows:
        plant, r = row["plant"], row["r"]
        best = max((name for name in r if name != plant), key=lambda name: r[name])
        alike = {name: words.get("alike", 0.0) for name, words in row["words"].items()}
        other = max((alike[name] for name in alike if family_of(name) != family_of(plant)), default=0.0)
        said = max(row["words"][plant], key=row["words"][plant].__getitem__)
        own = f"{alike[plant]:.2f}" + ("" if said == "alike" else f" ({said} {row['words'][plant][said]:.2f})")
        shares = [f"{share:.3f}" for share in row["learned"]]
        numbers = [*shares, f"{r[plant]:.2f}", f"{r[best]:.2f} ({best})", f"{row['strongest']:.2f}"]
        lines.append([task, row["part"], plant, *numbers, own, f"{other:.2f}"])
    return table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", action="append")
    parser.add_argument("--data")
    parser.add_argument("--labels", default="gold")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first episode's seed")
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rate", action="append", default=[], help="gd=1.0")
    parser.add_argument("--layer", type=int, default=4, help="after which the upper task vector is put in")
    parser.add_argument("--out", type=Path, default=Path("plants"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="episodes at once, a core each")
    asked = parser.parse_args()
    rates = {"gd": 1.0, "gd-all": 1e-4} | {name: float(rate) for name, rate in (one.split("=") for one in asked.rate)}
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.task or ["embedded-sst2", "embedded-agnews"]:
        began = time.perf_counter()
        task = Task.load(name, data=asked.data)
        pairs, learned = measured(asked, name, rates)
        rows = [row for kind in KINDS for row in studied(pairs, learned, kind)]
        (asked.out / f"{task.name}.json").write_text(json.dumps(rows, indent=1))
        print(shown(task.name, rows))
        print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    set_start_method("spawn")  # a forked process cannot use a GPU
    main()
