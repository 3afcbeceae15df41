"""A very large run: synthetic cells written, packed, opened, asked, reported; seconds and memory of each step.

    python -m benchmarks.pack FOLDER [--models 100] [--tasks 4] [--seeds 20] [--only write pack ...] [--json FILE]

25 cells (learners under controls, on three variants) for every model, task and seed: 200,000 by default. The numbers in
them are drawn; everything else is as a study of this shape would have written it. Each step runs in a process of its
own, so that its memory is its own. ``glob`` opens the loose cells, for comparison; it has to come before ``pack``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dualscope.core.canonical import fingerprint
from dualscope.core.rows import COLUMNS, QueryColumn
from dualscope.core.spec import under_control
from dualscope.studies.run_folder.cell_files import CELL, SCHEMA, parquet_bytes
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder

VARIANTS = ("trained", "untrained", "trained-embeddings")
LEARNERS = (
    *((name, None, role) for name, role in (("zero-shot", "baseline"), ("in-context", "reference"))),
    *((name, None, "hypothesis") for name in ("gd", "lcgd")),
    ("gd", "random-update", "null"),
)
ON_TRAINED = (
    *((name, control, "null") for name in ("gd", "lcgd") for control in ("random-labels", "other-task")),
    *((name, "redraw", "ceiling") for name in ("in-context", "gd", "lcgd")),
    *((name, "reorder", "hypothesis") for name in ("gd", "lcgd")),
    ("lcgd", "random-update", "null"),
)
LAYERS, QUERIES = 6, 16
STEPS = ("write", "glob", "pack", "open", "sql", "findings", "report")


def cells(models: int, tasks: int, seeds: int) -> Iterator[dict[str, Any]]:
    """The columns of every cell."""
    who = [(variant, *one) for variant in VARIANTS for one in LEARNERS] + [("trained", *one) for one in ON_TRAINED]
    for model in range(models):
        for task in range(tasks):
            for seed in range(seeds):
                for variant, learner, control, role in who:
                    yield {
                        **dict.fromkeys(COLUMNS),
                        "model": f"family-{model // 10}@step{1000 * (1 + model % 10)}",
                        "variant": variant,
                        "init_seed": None if variant == "trained" else seed,
                        "task": f"task-{task}",
                        "seed": seed,
                        "order": 0,
                        "shots": 0 if learner == "zero-shot" else 32,
                        "shots_used": 0 if learner == "zero-shot" else 32,
                        "learner": under_control(learner, control),
                        "control": control,
                        "role": role,
                        "lr": None if learner in ("zero-shot", "in-context") else 0.1,
                        "demo_labels": "gold",
                        "corrupt": "both",
                        "options": "{}",
                    }


def write(place: Path, shape: tuple[int, int, int]) -> int:
    """Without waiting for the disk, which a study does: it is not what is measured."""
    for part in ("cells", "queries"):
        (place / part).mkdir(parents=True, exist_ok=True)
    (place / "study.yaml").write_text("models: [synthetic]\n")
    rng, count = np.random.default_rng(0), 0
    drawn = ["label", "prediction", "label_logprobs"]
    for columns in cells(*shape):
        name = fingerprint({key: value for key, value in columns.items() if value is not None})
        compared = columns["learner"] not in ("zero-shot", "in-context")
        metrics = ["accuracy", *(["explained", "sim_aou", "sim_am_delta"] if compared else [])]
        fields = [pa.field("query", pa.string()), *(pa.field(one, pa.int64()) for one in drawn[:2])]
        values: list[Any] = [[f"q{i}" for i in range(QUERIES)], *rng.integers(0, 2, (2, QUERIES))]
        fields.append(pa.field(drawn[2], pa.list_(pa.float64())))
        values.append(rng.normal(size=(QUERIES, 2)).tolist())
        for metric in metrics:
            fields.append(QueryColumn(metric).field(pa.float64()))
            values.append(rng.random(QUERIES))
        queries = pa.table([pa.array(one) for one in values], schema=pa.schema(fields, metadata={CELL: name}))
        rows = []
        for metric in metrics:
            for layer in (None, *(range(LAYERS) if metric in ("sim_aou", "sim_am_delta") else ())):
                value = float(rng.random())
                own = {"metric": metric, "layer": layer, "value": value, "low": value - 0.1}
                reference = "in-context" if compared and metric != "accuracy" else None
                rows.append({**columns, **own, "high": value + 0.1, "n": QUERIES, "reference": reference})
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        notes = {CELL: name, "seconds": "1.0", "device": "cpu", "parameters": "1000000"}
        (place / f"queries/{name}.parquet").write_bytes(parquet_bytes(queries))
        (place / f"cells/{name}.parquet").write_bytes(parquet_bytes(table.replace_schema_metadata(notes)))
        count += 1
    return count


def glob(place: Path) -> int:
    """What has to be read before anything can be said of loose cells: the rows of each."""
    run = RunFolder.open(place)
    return sum(run.rows([cell]).num_rows for cell in run.stored())


def opened(place: Path) -> int:
    run = RunFolder.open(place)
    assert not run.loose()
    return len(run.stored())


def asked(place: Path) -> int:
    sql = "select model, avg(value) from rows where metric = 'sim_aou' and layer is null group by 1"
    return RunFolder.open(place).query(sql).num_rows


def findings(place: Path) -> int:
    """Summary and verdicts, as `run` makes them at its end, and keeps them."""
    from dualscope.findings import summary
    from dualscope.findings.verdict import verdicts
    from dualscope.report.reported_run import ReportedRun

    source = ReportedRun(place)
    rows = summary.summarise(source.run, source.cells)
    return len(rows) + len(verdicts(source.run, source.cells))


def reported(place: Path) -> int:
    from dualscope.report import write_report

    return write_report([place], place / "report.html").stat().st_size


def _step(name: str, place: Path, shape: tuple[int, int, int]) -> dict[str, Any]:
    def packed() -> int:
        return pack(RunFolder.open(place), RunFolder.open(place)).cells

    todo: dict[str, Callable[[], int]] = {
        "write": lambda: write(place, shape),
        "glob": lambda: glob(place),
        "pack": packed,
        "open": lambda: opened(place),
        "sql": lambda: asked(place),
        "findings": lambda: findings(place),
        "report": lambda: reported(place),
    }
    began = time.monotonic()
    count = todo[name]()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step": name,
        "seconds": round(time.monotonic() - began, 2),
        "processor": round(used.ru_utime + used.ru_stime, 2),  # of the whole process, starting included
        "GiB": round(used.ru_maxrss / 2**20, 2),
        "count": count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("models", 100), ("tasks", 4), ("seeds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    shape = (options.models, options.tasks, options.seeds)
    found = []
    for name in options.only:
        if options.here:
            found.append(_step(name, options.folder, shape))
            print(json.dumps(found[-1]), flush=True)
            continue
        sizes = [f"--{key}={value}" for key, value in zip(("models", "tasks", "seeds"), shape, strict=True)]
        command = [sys.executable, "-m", "benchmarks.pack", str(options.folder), *sizes, "--here", "--only", name]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ)).stdout
        print(said, end="", flush=True)
        found.append(json.loads(said.strip().splitlines()[-1]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
