"""One episode with every hypothesis and every ceiling: seconds of each, everything chosen already.

    python -m benchmarks.hypotheses                                                     a tiny shape on the CPU
    python -m benchmarks.hypotheses --device cuda --shape 1.3b --precision bfloat16 --queries 512

A GPT-2 of random weights; 32 demonstrations, queries and spare examples of mr's lengths. Each learner is measured
whole: what it learns, what it reads, its rows (accuracy, explained shares, likeness of attention outputs), and the
second reading for the signal to noise. `gd-all` and the tuned learner's other parameters need more than 16 bits.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import lessons
from benchmarks.shapes import SHAPES, VOCABULARY, random_model
from benchmarks.timing import machine, save, show, wait
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.learners import Bench, identify, role_of
from dualscope.metrics.measured import measure_cell
from dualscope.tasks.lesson import Lesson

METRICS = ["default", "explained_next_token", "topk_overlap"]
WANT = frozenset({"next_tokens", "mass", "exits"})
TUNED = {"lr": 0.001, "epochs": 3, "loss": "label", "parameters": "kv", "optimiser": "adam"}


class Supplied(Bench):
    """A bench whose spare examples are random tokens too."""

    others: Lesson

    def materials(self, count: int, needed: str) -> Lesson:
        some = self.others.only(range(count))
        return replace(self.lesson, queries=some.queries, labels=some.labels, query_ids=some.query_ids)


def learnings(model: Any) -> list[LearnerSpec]:
    middle = model.n_layers // 2
    which = [[layer, head] for layer in (middle - 1, middle) for head in range(min(5, model.n_heads))]
    found: list[tuple[str, dict[str, Any], float | None]] = [
        ("gd", {}, 0.003),
        ("lcgd", {}, 0.003),
        ("gd-linearized", {}, 0.003),
        ("gd-tuned", TUNED, None),
        ("probe", {}, None),
        ("task-vector", {"layer": middle}, None),
        ("task-vector", {"layer": middle, "mode": "add"}, None),
        ("function-vector", {"layer": middle, "which": which}, None),
        ("kernel", {"layer": middle, "temperature": 0.1}, None),
        ("context-patch", {}, None),
        ("static-patch", {}, None),
        ("static-patch", {"matrix": False}, None),
        ("kv-distilled", {"lr": 0.001}, None),
        ("kv-aligned", {"lr": 0.001}, None),
    ]
    if model.precision == "float32":
        found.append(("gd-all", {}, 0.003))
    return [identify(name, options, None, rate) for name, options, rate in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--no-ceilings", action="store_true", help="the hypotheses alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = random_model(given.shape, given.precision, given.device)
    lesson = lessons.real_lengths("mr", 32, given.queries, VOCABULARY)
    spare = lessons.real_lengths("mr", 1, 64, VOCABULARY, seed=1)

    def bench_of() -> Supplied:
        bench = Supplied(model, lesson, want=WANT)
        bench.others = replace(spare, query_ids=tuple(f"spare:{i}" for i in range(64)))
        return bench

    measured = [each for each in learnings(model) if not given.no_ceilings or role_of(each) != "ceiling"]
    rows: list[list[object]] = []
    for warm in (False, True):  # the first round sets up the device's libraries
        rows, bench = [], bench_of()
        for learning in (ZERO_SHOT, IN_CONTEXT, *measured):
            wait(model.device)
            start = time.perf_counter()
            reference = None if learning == ZERO_SHOT else IN_CONTEXT
            measure_cell(bench, learning, reference=reference, metrics=METRICS)
            wait(model.device)
            rows.append([learning.label, role_of(learning), time.perf_counter() - start])
            if learning not in (ZERO_SHOT, IN_CONTEXT):
                bench.forget(learning)
        if model.device.type == "cpu" and not warm:
            break
    totals = {
        role: sum(float(str(row[2])) for row in rows if row[1] in kinds)
        for role, kinds in (
            ("zero-shot, in-context and all hypotheses", ("baseline", "reference", "hypothesis")),
            ("ceilings", ("ceiling",)),
        )
    }
    show(f"{given.shape}, {given.precision}, {given.queries} queries", ["learner", "role", "seconds"], rows)
    show("together", ["what", "seconds"], [[name, value] for name, value in totals.items()])
    if model.device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated(model.device) / 2**30:.1f} GiB")
    save(given.out, {"machine": machine(model.device), "rows": rows, "totals": totals, **vars(given), "out": ""})


if __name__ == "__main__":
    main()
