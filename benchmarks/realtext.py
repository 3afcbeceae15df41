"""In-context learning of a small real model: accuracy on Subj at 16 shots, mean over seeds 4, 5 and 6, and how much
faster it is read than by the reference flow, in the same run.

    python -m benchmarks.realtext [--queries 500]

Needs the checkpoint and the data sets in the folder that DUALSCOPE_SHARED names (models/realtext-21m, data/);
says so and exits 0 where they are not there. Exits 1 where in-context accuracy is below 0.80, zero-shot accuracy
above 0.60, or a query is read less than 15 times faster than by the reference flow.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.reference import reference_flow
from benchmarks.timing import seconds
from dualscope.models import Model
from dualscope.tasks import Episode, Task, make_lesson

SHARED = Path(os.environ.get("DUALSCOPE_SHARED", Path(__file__).parents[2] / "shared"))
SEEDS = (4, 5, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queries", type=int, default=500)
    options = parser.parse_args()
    folder, data = SHARED / "models" / "realtext-21m", SHARED / "data"
    if not folder.is_dir() or not data.is_dir():
        print(f"skipped: {folder} or {data} is not there")
        return
    model, task = Model.load(str(folder), device="cpu"), Task.load("subj", data=data)
    accuracies: dict[str, list[float]] = {"zero-shot": [], "in-context": []}
    start = time.perf_counter()
    for seed in SEEDS:
        episode = Episode.draw(task, shots=16, seed=seed, queries=options.queries)
        lesson = make_lesson(episode, model.tokenizer, model.max_positions)
        accuracies["zero-shot"].append(float(model.read(lesson).correct.float().mean()))
        in_context = model.read(lesson, model.prefix(lesson.context))
        accuracies["in-context"].append(float(in_context.correct.float().mean()))
    means = {name: sum(values) / len(values) for name, values in accuracies.items()}
    for name, values in accuracies.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        print(f"{name:10} {means[name]:.3f}  (seeds {', '.join(map(str, SEEDS))}: {each})")
    print(f"{time.perf_counter() - start:.0f} s")
    ours = seconds(lambda: model.read(lesson, model.prefix(lesson.context)), model.device, 3) / len(lesson.queries)
    theirs, writing = reference_flow(model, lesson, 20)
    print(
        f"ms a query, encoding included: {1000 * ours:.2f}; reference flow {1000 * theirs:.1f} "
        f"({theirs / ours:.0f} times), and {1000 * writing:.1f} for its JSON"
    )
    if theirs < 15 * ours:
        sys.exit("expected at least 15 times faster than the reference flow")
    if means["in-context"] < 0.80 or means["zero-shot"] > 0.60:
        sys.exit("expected in-context >= 0.80 and zero-shot <= 0.60")


if __name__ == "__main__":
    main()
