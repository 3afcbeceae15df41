"""Draws of an intervention learned from at once, against one draw by itself: ratios in one run.

python -m benchmarks.draws                                              the embedded model on the CPU, two threads
python -m benchmarks.draws --shape 1.3b --device cuda --precision tf32 bfloat16
python -m benchmarks.draws --growth                                     with draws, shots and queries

One draw is the learner on one relabelled lesson, training and reading, as it goes where nothing is batched. Times are
the least of several, taken in turn: what else a machine does lies above. On a CPU processor time is shown too.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import lessons
from benchmarks.shapes import SHAPES, VOCABULARY, random_model
from benchmarks.timing import machine, save, show, wait
from dualscope.core.errors import is_out_of_memory
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench
from dualscope.learners.response_bench import ResponseBench, cannot_be_planted
from dualscope.models import Model
from dualscope.tasks.lesson import Lesson

RATES = {"gd": 0.1, "lcgd": 0.1, "gd-all": 0.01, "gd-linearized": 0.1, "lcgd-matched": 0.1, "gd-matched": 0.1}
TASK = "embedded-sst2"  # and of random models the lengths of mr, the same texts in a tokenizer of 50,000
GROWTH: dict[str, tuple[int, ...]] = {"draws": (8, 12, 16, 24), "shots": (8, 16, 32, 64), "queries": (10, 50, 100, 400)}


class Alone(ResponseBench):
    """Every draw by itself."""

    def _together(self, *_: Any) -> None:
        return None


def lesson_of(model: Model, shape: str, shots: int, queries: int) -> Lesson:
    if shape != "embedded":
        return balanced(lessons.real_lengths("mr", shots, queries, VOCABULARY))
    from dualscope import Episode, Task, make_lesson

    episode = Episode.draw(Task.load(TASK), shots=shots, queries=queries, balanced=True)
    return make_lesson(episode, model.tokenizer, model.max_positions)


def balanced(lesson: Lesson) -> Lesson:
    """Classes by turns, so that there are labels to change."""
    classes = len(lesson.answers)
    taught = [
        replace(one, label_index=i % classes, label=lesson.answers[i % classes])
        for i, one in enumerate(lesson.demonstrations)
    ]
    return replace(lesson, demonstrations=tuple(taught), training=tuple(taught))


def least(work: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> dict[str, Any]:
    """By name seconds of the clock and of the processor, each the least; all of them in turn, after one for nothing."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, job in work.items():
            gc.collect()
            wait(device)
            before = time.perf_counter(), time.process_time()
            job()
            wait(device)
            if turn or not repeats:
                found[name].append((time.perf_counter() - before[0], time.process_time() - before[1]))
    return {name: tuple(min(column) for column in zip(*times, strict=True)) for name, times in found.items()}


def measured(
    model: Model, lesson: Lesson, learner: str, draws: int, repeats: int, plant: bool, all_alone: bool = False
) -> dict[str, Any]:
    """Seconds of one draw, of all at once, and if asked of all one by one."""
    bench = Bench(model, lesson, spare=[])
    bench.zero_shot  # noqa: B018 (shared by all draws, as in a study)
    learning = LearnerSpec(learner, lr=RATES.get(learner))
    plant = plant and not cannot_be_planted(learning)
    together, alone = ResponseBench(bench, draws=draws), Alone(bench, draws=draws)
    one, first = Alone(bench, draws=draws), together.draws[:1]
    one.draws = first
    work: dict[str, Callable[[], object]] = {
        "one draw": lambda: one.on_draws(learning, plant),
        "at once": lambda: together.on_draws(learning, plant),
    }
    if all_alone:
        work["one by one"] = lambda: alone.on_draws(learning, plant)
    return least(work, model.device, repeats)


def compared(model: Model, shape: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    lesson, rows = lesson_of(model, shape, args.shots, args.queries), []
    for learner in args.learners:
        for plant in (False, True):
            if plant and cannot_be_planted(LearnerSpec(learner, lr=RATES.get(learner))):
                continue
            name = f"{learner}, planted too" if plant else learner
            try:
                times = measured(model, lesson, learner, args.draws, args.repeats, plant, args.all)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                rows.append({"learner": name, "memory": "out of memory"})
                continue
            rows.append({"learner": name, **times})
            print(name, {key: [round(t, 4) for t in value] for key, value in times.items()}, flush=True)
    return rows


def growth(model: Model, shape: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for axis, values in GROWTH.items():
        for value in values:
            asked = {"draws": args.draws, "shots": args.shots, "queries": args.queries, axis: value}
            lesson = lesson_of(model, shape, asked["shots"], asked["queries"])
            for learner in args.learners:
                times = measured(model, lesson, learner, asked["draws"], args.repeats, False)
                rows.append({"learner": learner, "axis": axis, **asked, **times})
                print(axis, value, learner, times, flush=True)
    return rows


def columns(row: dict[str, Any], on_cpu: bool) -> list[object]:
    """Seconds and ratios of one row."""
    if "memory" in row:
        return [row["memory"]]
    one, many = row["one draw"], row["at once"]
    found: list[object] = [one[0], many[0], many[0] / one[0]]
    if on_cpu:
        found += [many[1] / one[1]]
    if "one by one" in row:
        found += [row["one by one"][0], row["one by one"][0] / many[0]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["embedded", *SHAPES], default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--learners", nargs="+", default=["gd", "lcgd", "in-context"])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--all", action="store_true", help="also all draws one by one")
    parser.add_argument("--growth", action="store_true", help="with draws, shots and queries, one at a time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(args.threads)
    command = " ".join(["python", "-m", "benchmarks.draws", *sys.argv[1:]])
    print(command, machine(device), flush=True)
    results: dict[str, Any] = {"command": command, **machine(device)}
    for precision in args.precision:
        if args.shape == "embedded":
            model = Model.load("embedded", device=args.device, dtype=precision)
        else:
            model = random_model(args.shape, precision, args.device)
        rows = (growth if args.growth else compared)(model, args.shape, args)
        results[precision] = rows
        on_cpu, names = device.type == "cpu", ["learner"] if not args.growth else ["learner", *GROWTH]
        titles = [*names, "one draw", "at once", "ratio", *(["of processor time"] if on_cpu else [])]
        titles += ["one by one", "gain"] if args.all else []
        table = [[*(row[name] for name in names), *columns(row, on_cpu)] for row in rows]
        table = [[*row, *[""] * (len(titles) - len(row))] for row in table]
        title = f"{args.shape}, {precision}, {args.draws} draws, {args.shots} shots, {args.queries} queries"
        show(f"{title}: seconds", titles, table)
        del model
    save(args.out, results)


if __name__ == "__main__":
    main()
