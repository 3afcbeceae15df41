"""Every regression experiment at its full size, on one GPU, each within minutes.

    python -m benchmarks.regression_full --out DIR [--minutes 9] [--experiment garg,mesa] [--only garg-tree] [--tiny]

A job is an experiment, or a part of one (some of its arms or seeds), in a process of its own. Experiments run one after
the other, each for so many minutes; the jobs of one side by side (through NVIDIA's multi-process service where it
works: small kernels of several jobs then share the GPU), and each ends its trainings by the clock: one that has to wait
for others has the time that they leave. A job that fails or is late takes no other along. Every job's results are in
DIR/parts.tar.gz as soon as it has ended; `python -m benchmarks.regression_ship DIR/parts.tar.gz` joins them and writes
the shipped Parquet files. Needs torch, numpy, scipy, transformers, pydantic and pyarrow, nothing else.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dualscope.studies.execute.engines.local import PIPES, shared_gpu

OVERHEAD = 0.8  # minutes of a job that are not training: starting, measuring
COMPILING = 0.7  # minutes that a language model's compiler takes before its clock starts
LEAST = 0.15  # minutes of a training; with fewer, results would only say that nothing was learned
VARIANTS = 6  # jobs among which the other kinds of attention are dealt out
COMPILED = ("garg", "newton", "akyurek", "momentum")  # with trainings long enough to repay it
# Jobs; of any other experiment all. More would gain nothing, and one that compiles or probes leaves the GPU to others.
AT_ONCE = {"akyurek": 4}
LATE = "regularized, alpha = -0.5"  # the kind of attention that begins last
GRACE = 1.0  # minutes after the end in which a job that is late may still store what it found


@dataclass(frozen=True)
class Job:
    name: str
    experiment: str
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "cuda"


JOBS = (
    *(Job(f"garg-{name}", "garg", {"classes": (name,)}) for name in ("linear", "sparse", "tree", "network")),
    *(
        Job(f"akyurek-noise-{noise}", "akyurek", {"noises": (noise,), "depths": (), "widths": ()})
        for noise in (0.0, 0.25, 0.5)
    ),
    *(
        Job(f"akyurek-depth-{depth}", "akyurek", {"noises": (), "depths": (depth,), "widths": ()})
        for depth in (1, 2, 4, 12)
    ),
    *(
        Job(f"akyurek-width-{width}", "akyurek", {"noises": (), "depths": (), "widths": (width,)})
        for width in (32, 64, 128)
    ),
    *(Job(f"newton-{condition}", "newton", {"conditions": (float(condition),)}) for condition in (1, 100)),
    *(Job(f"variants-{i}", "variants", {"arms": i}) for i in range(VARIANTS)),
    # One seed of it had not begun after 8,000 steps: twice as many, watched at every second of the others'.
    Job("variants-late", "variants", {"arms": (LATE,), "steps": 15840}),
    Job("vonoswald-recurrent", "vonoswald", {"sharing": ("recurrent",)}),
    Job("vonoswald-own", "vonoswald", {"sharing": ("own weights",)}),
    Job("mesa-linear", "mesa", {"layers": 0}),
    Job("mesa-gpt2", "mesa", {"depths": ()}),
    Job("ahn", "ahn"),
    Job("cheng", "cheng"),
    *(
        Job(f"momentum-{kind}-{seed}", "momentum", {"kinds": (kind,), "seeds": (seed,)})
        for kind in ("vanilla", "momentum")
        for seed in range(3)
    ),
)
NAMES = tuple(dict.fromkeys(job.experiment for job in JOBS))


def build(job: Job, minutes: float, tiny: bool, compiled: bool) -> Any:
    """The job's experiment, each of its trainings with its share of the time."""
    from dualscope.regression import EXPERIMENTS
    from dualscope.regression.experiments.variants import ARMS

    kind = EXPERIMENTS[job.experiment]
    settings: dict[str, Any] = dict(job.settings)
    if isinstance(settings.get("arms"), int):
        settings["arms"] = tuple(arm for arm in ARMS if arm != LATE)[settings["arms"] :: VARIANTS]
    if tiny:
        settings.pop("steps", None)
    settings["device"] = "cpu" if tiny else job.device
    make = kind.quick if tiny else kind.full
    trainings = make(**settings).trainings
    if job.experiment in COMPILED:
        settings["compiled"] = compiled
    besides = OVERHEAD + 0.08 * (trainings - 1)
    besides += COMPILING if job.experiment == "momentum" and settings.get("compiled") else 0
    each = max(0.02, (minutes - besides) / trainings)
    if each < LEAST and not tiny:
        raise SystemExit(
            f"{job.name}: {minutes:.1f} minutes leave {60 * each:.0f} s for each of {trainings} trainings, too little "
            f"for a result; give at least {besides + LEAST * trainings:.1f} minutes"
        )
    return make(**settings, minutes=None if job.experiment == "cheng" else each)


def machine(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"


def run_job(job: Job, out: Path, minutes: float, tiny: bool, compiled: bool, since: float) -> None:
    """One job, in this process; a compiler that fails is done without, and said."""
    began = time.monotonic()
    try:
        experiment = build(job, minutes, tiny, compiled)
        results = experiment.run(conclude=False)
    except Exception:
        left = minutes - (time.monotonic() - began) / 60
        if not compiled or left < 2 * OVERHEAD:
            raise
        traceback.print_exc()
        print("without the compiler, then", flush=True)
        experiment = build(job, left, tiny, False)
        results = experiment.run(conclude=False)
    store(job, experiment, results, out, time.monotonic() - began, since)


def store(job: Job, experiment: Any, results: Any, out: Path, seconds: float, since: float) -> None:
    stored = {
        "job": job.name,
        "settings": experiment.model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "ended": round(time.time() - since, 1),  # after the experiment's first job began
        "machine": machine(experiment.device),
        "shared": PIPES in os.environ,  # whether jobs computed at once, and did not take turns
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in ("torch", "transformers", "numpy")},
        "results": results.as_dict(),
    }
    aside = out / f"{job.name}.new"
    aside.write_bytes(gzip.compress(json.dumps(stored).encode()))
    aside.rename(out / f"{job.name}.json.gz")
    for check in results.checks:
        print("holds" if check.holds else "FAILS", check.claim, "|", check.found)
    for line in trainings(results):
        print(line)
    print(f"{job.name}: {stored['seconds']} s", json.dumps(results.notes), flush=True)


def trainings(results: Any) -> list[str]:
    """A line a training curve: first and last value by seed; and the steps at which in-context learning appeared."""
    from dualscope.regression.emergence import APPEARS

    curves: dict[tuple[str, str, str], dict[int, dict[float, float]]] = {}
    for row in results.rows:
        if row["x_name"] == "step" and row["seed"] is not None:
            key = row["panel"], row["series"], row["metric"]
            curves.setdefault(key, {}).setdefault(row["seed"], {})[row["x"]] = row["value"]
    found = []
    for (panel, series, metric), seeds in curves.items():
        if metric == APPEARS:
            steps = [f"{min(curve):g}" for curve in seeds.values()]
            found.append(f"{panel} | {series} | {metric}: {', '.join(steps)}")
        else:
            ends = [f"{curve[min(curve)]:.4f} -> {curve[max(curve)]:.4f}" for curve in seeds.values()]
            last = max(max(curve) for curve in seeds.values())
            found.append(f"{panel} | {series} | {metric}, step {last:g}: {'; '.join(ends)}")
    return found


def pack(out: Path) -> None:
    """All that has come so far, in one file."""
    aside = out / "parts.new"
    with tarfile.open(aside, "w:gz") as whole:
        for path in sorted((out / "work").iterdir()):
            if path.suffix in (".gz", ".log"):
                whole.add(path, path.name)
    aside.rename(out / "parts.tar.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="for each experiment")
    parser.add_argument("--experiment", default=",".join(NAMES), help="names with commas; all, unless given")
    parser.add_argument("--only", default="", help="names of jobs, with commas")
    parser.add_argument("--tiny", action="store_true", help="quick sizes on the CPU, to try the script")
    parser.add_argument("--device", default="cuda", help="cpu: full sizes without a GPU; for linear layers")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-mps", action="store_true", help="jobs take turns on the GPU")
    parser.add_argument("--at-once", type=int, help="jobs; 4 of akyurek's and all of any other, unless given")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        job = replace(next(job for job in JOBS if job.name == asked.job), device=asked.device)
        compiled = not asked.no_compile and not asked.tiny
        run_job(job, asked.out, asked.minutes, asked.tiny, compiled, asked.since)
        return
    names = [name for name in asked.only.split(",") if name]
    groups = [[job for job in JOBS if job.experiment == experiment] for experiment in asked.experiment.split(",")]
    unknown = not all(groups) or {*names} - {job.name for job in JOBS}
    if names:
        groups = [[job for job in jobs if job.name in names] for jobs in groups]
    if unknown or not any(groups):
        parser.error(f"experiments: {', '.join(NAMES)}; jobs: {', '.join(job.name for job in JOBS)}")
    work = asked.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    with nullcontext(False) if asked.tiny or asked.no_mps or asked.device == "cpu" else shared_gpu() as shared:
        print("with the multi-process service" if shared else "jobs take turns on the GPU", flush=True)
        ended: dict[str, int | str] = {}
        for jobs in filter(None, groups):
            ended |= run_all(jobs, work, asked)
    for job in (job for jobs in groups for job in jobs):
        print(f"--- {job.name}: {ended.get(job.name)}")
        log_file = work / f"{job.name}.log"
        if log_file.exists():
            print(log_file.read_text()[-1500:])


def run_all(jobs: list[Job], work: Path, asked: argparse.Namespace) -> dict[str, int | str]:
    """Each in a process of its own; gives how each ended."""
    began, since = time.monotonic(), time.time()
    environment = os.environ | {
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
    }
    waiting = list(jobs)
    at_once = asked.at_once or AT_ONCE.get(jobs[0].experiment, len(jobs))
    running: dict[str, subprocess.Popen[bytes]] = {}
    ended: dict[str, int | str] = {}
    while waiting or running:
        left = asked.minutes - (time.monotonic() - began) / 60
        while waiting and len(running) < at_once and left > 0:
            job = waiting.pop(0)
            command = [sys.executable, "-m", "benchmarks.regression_full", "--job", job.name, "--out", str(work)]
            command += ["--minutes", f"{left:.2f}", "--device", asked.device, "--since", str(since)]
            command += ["--tiny"] if asked.tiny else []
            command += ["--no-compile"] if asked.no_compile else []
            log = (work / f"{job.name}.log").open("w")
            running[job.name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        for name, process in list(running.items()):
            if process.poll() is None and left <= -GRACE:
                process.kill()
                process.wait()
                ended[name] = "out of time"
            if process.poll() is not None:
                ended.setdefault(name, process.returncode)
                del running[name]
                print(f"{(time.monotonic() - began) / 60:5.1f} min  {name}: {ended[name]}", flush=True)
                pack(asked.out)
        if left <= 0 and waiting:
            ended |= {job.name: "not begun" for job in waiting}
            waiting = []
        time.sleep(0.5)
    pack(asked.out)
    return ended


if __name__ == "__main__":
    main()
