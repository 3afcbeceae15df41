"""How many steps a second regression's trainings take on this machine, alone or side by side.

python -m benchmarks.regression_steps linear akyurek variant             # one after the other
python -m benchmarks.regression_steps linear variant --beside            # at the same time, each in its own process
python -m benchmarks.regression_steps linear --compiled --steps 400
python -m benchmarks.regression_steps tree --compiled --kernels 20       # where the time goes
"""

import argparse
import subprocess
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

from dualscope.models.loading.device_and_precision import resolve
from dualscope.regression.architectures.gpt2 import Size
from dualscope.regression.problems import DecisionTrees, FunctionClass, LinearFunctions
from dualscope.regression.training import Schedule, Workplace, train_on_prompts
from dualscope.studies.execute.engines.local import shared_gpu

PROFILED = 20  # steps
WARM = 40  # steps before the clock starts: kernels, compilers, recordings
BATCH = 64
TRAININGS: dict[str, tuple[FunctionClass, int, int, Size]] = {  # with points and seeds
    "linear": (LinearFunctions(20), 41, 3, Size(12, 256, 8)),
    "tree": (DecisionTrees(20), 101, 3, Size(12, 256, 8)),
    "akyurek": (LinearFunctions(8), 17, 3, Size(8, 256, 8)),
    "variant": (LinearFunctions(5), 16, 8, Size(4, 64, 4)),
}


def measure(name: str, steps: int, device: torch.device, compiled: bool, kernels: int = 0) -> float:
    """Milliseconds a step; the ``kernels`` that took longest are printed, of some more steps."""
    functions, points, seeds, size = TRAININGS[name]
    done, times = 0, dict[int, float]()
    profiled = profile(activities=[getattr(ProfilerActivity, device.type.upper())]) if kernels else None
    last = WARM + steps + (PROFILED if kernels else 0)

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if done in (WARM, WARM + steps) and done not in times:
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[done] = time.monotonic()
            if profiled and done > WARM:
                profiled.start()

    schedule = Schedule(last, 1e-3, 1.0, 1e-4, 10)
    place = Workplace(device, advance, compiled=compiled)
    train_on_prompts(functions, points, range(seeds), size, schedule, BATCH, place, watch_every=10**9)
    if profiled:
        profiled.stop()
        by = f"self_{device.type}_time_total"
        print(profiled.key_averages().table(sort_by=by, row_limit=kernels, max_name_column_width=100))
    return 1000 * (times[WARM + steps] - times[WARM]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", nargs="+", choices=list(TRAININGS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--kernels", type=int, default=0, help="print so many, those that take longest first")
    parser.add_argument("--beside", action="store_true", help="all at the same time")
    asked = parser.parse_args()
    if not asked.beside:
        for name in asked.trainings:
            took = measure(name, asked.steps, resolve(asked.device), asked.compiled, asked.kernels)
            print(f"{name}: {took:.1f} ms a step", flush=True)
        return
    command = [sys.executable, "-m", "benchmarks.regression_steps"]
    options = ["--steps", str(asked.steps), "--device", asked.device] + ["--compiled"] * asked.compiled
    with shared_gpu() as shared:
        print("with the multi-process service" if shared else "in turns", flush=True)
        jobs = [subprocess.Popen([*command, name, *options]) for name in asked.trainings]
        for job in jobs:
            job.wait()


if __name__ == "__main__":
    main()
