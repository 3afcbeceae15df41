"""A data file of gigabytes: seconds and memory of reading and drawing from it, in a process of its own.

python -m benchmarks.large_data [--gigabytes 2]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DRAW = """
import resource, sys, time
from dualscope import Episode, Task
began = time.perf_counter()
task = Task.load(sys.argv[1])
digest = task.digest
episode = Episode.draw(task, 32, seed=0, queries=200)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{len(task.train):,} examples, {time.perf_counter() - began:.1f} s, {peak:.2f} GB at most")
"""


def write(folder: Path, gigabytes: float) -> Path:
    """A task of so many gigabytes of jsonl."""
    with (folder / "data.jsonl").open("w") as file:
        row = 0
        while file.tell() < gigabytes * 2**30:
            lines = []
            for _ in range(10_000):
                text = f"the film number {row} is {'good' if row % 2 else 'bad'} and long, " * (1 + row % 5)
                lines.append(json.dumps({"id": row, "text": text, "label": row % 2, "source": "made up"}))
                row += 1
            file.write("\n".join(lines) + "\n")
    task = folder / "task.yaml"
    task.write_text(
        "name: large\nsource: {files: {all: data.jsonl}}\nsplits: {train: all, evaluation: all}\n"
        "template: 'Text: {text} Label:'\nlabels: [bad, good]\n"
    )
    return task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=2.0)
    gigabytes = parser.parse_args().gigabytes
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        task = write(Path(folder), gigabytes)
        print(f"{gigabytes:g} GB of jsonl written in {time.perf_counter() - began:.0f} s")
        environment = {"XDG_CACHE_HOME": f"{folder}/cache"}
        for what in ("first", "again, as a second worker"):
            done = subprocess.run(
                [sys.executable, "-c", DRAW, str(task)],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, **environment},
            )
            print(f"{what}: {done.stdout.strip()}")
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
