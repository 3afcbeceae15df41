"""Whether a process that computes many cells keeps its size: resident memory after every hundred of them.

python -m benchmarks.flat_memory [--cells 1000] [--queries 8] [--shots 4] [--draws 8]

The embedded model, one process, zero-shot, in-context, gd and lcgd with their controls, over as many seeds as make up
the cells; with ``--draws`` also their responses, on so many draws at once. Growth is counted from the first tenth of
the cells on, when every library has its buffers.
"""

import argparse
import gc
import tempfile
import time
from contextlib import suppress

import psutil

from benchmarks.timing import show
from dualscope import Study
from dualscope.studies.execute.runner import Runner
from dualscope.studies.execute.work import Event, Outcome

LIMIT = 30  # MB over 1,000 cells
A_SEED = 8  # cells


def study(cells: int, shots: int, queries: int, draws: int = 0) -> Study:
    return Study.build(
        {
            "models": ["embedded"],
            "tasks": ["embedded-sst2"],
            "learners": ["gd", "lcgd"],
            "variants": ["trained"],
            "controls": ["random-labels", "random-update"],
            "seeds": cells // A_SEED + 1,
            "shots": shots,
            "queries": queries,
            "lr": 0.1,
            "dtype": "float32",
            "interventions": [{"kind": "relabel", "draws": draws}] if draws else [],
        }
    )


def run(cells: int, shots: int, queries: int, draws: int = 0) -> list[tuple[int, float, float, int]]:
    """After so many cells: seconds, MB that are resident, and how many objects Python's collector knows."""
    me, began = psutil.Process(), time.perf_counter()
    step = max(1, cells // 10)
    seen: list[tuple[int, float, float, int]] = []
    done = 0

    class Enough(Exception):
        """As many cells as were asked for."""

    def listen(event: Event) -> None:
        nonlocal done
        if not isinstance(event, Outcome):
            return
        if event.state == "failed":
            raise RuntimeError(event.reason)
        done += 1
        if done % step == 0:
            seen.append((done, time.perf_counter() - began, me.memory_info().rss / 1e6, len(gc.get_objects())))
        if done >= cells:
            raise Enough

    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        Runner(study(cells, shots, queries, draws), folder, device="cpu", jobs=1, tell=listen).execute()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--draws", type=int, default=0, help="of `relabel`; 8 shots or more allow them")
    args = parser.parse_args()
    seen = run(args.cells, args.shots, args.queries, args.draws)
    show("one process", ["cells", "seconds", "resident, MB", "objects"], seen)
    growth = seen[-1][2] - seen[0][2]
    print(f"growth: {growth:+.0f} MB from cell {seen[0][0]} to cell {seen[-1][0]} (at most {LIMIT} MB over 1,000)")


if __name__ == "__main__":
    main()
