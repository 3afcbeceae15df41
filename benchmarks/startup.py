"""What a process costs before it computes anything: imports by package, and loading the embedded model.

python -m benchmarks.startup [--device cuda]
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict

from benchmarks.timing import show

CODE = """
import time
start = time.perf_counter()
import torch
torch_time = time.perf_counter() - start
from dualscope.models import Model
from dualscope.learners import Bench
from dualscope.metrics import measure
model_time = time.perf_counter() - start - torch_time
model = Model.load("embedded", device="{device}")
print("seconds", torch_time, model_time, time.perf_counter() - start - torch_time - model_time)
"""


def run(device: str) -> tuple[list[float], list[tuple[str, float]], list[tuple[str, float]], float]:
    """Seconds of the three parts; by package, its own time; by module, with what it imports; of the whole process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", CODE.format(device=device)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall = time.perf_counter() - start
    own: dict[str, float] = defaultdict(float)
    modules: list[tuple[str, float]] = []
    for line in done.stderr.splitlines():
        if line.startswith("import time:") and "self [us]" not in line:
            alone, together, name = line.removeprefix("import time:").split("|")
            own[".".join(name.strip().split(".")[:2])] += int(alone) / 1e6
            modules.append((name.strip(), int(together) / 1e6))
    parts = [float(word) for word in done.stdout.split()[-3:]]
    by_package = sorted(own.items(), key=lambda item: -item[1])
    return parts, by_package[:20], sorted(modules, key=lambda item: -item[1])[:40], wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for time_ in ("first", "second"):
        parts, packages, modules, wall = run(args.device)
        rows = [*zip(("torch", "dualscope and transformers", "loading the embedded model"), parts, strict=True)]
        show(f"{time_} time, seconds", ["", ""], [*rows, ("the whole process", wall)])
    show("own import time by package", ["", "s"], packages)
    show("import time with what is imported", ["", "s"], modules)


if __name__ == "__main__":
    main()
