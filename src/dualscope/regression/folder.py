"""An experiment's results in a run folder: ``regression.parquet``, ``regression.yaml``, ``provenance.json``."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dualscope.errors import InputError
from dualscope.regression.results import COLUMNS, Results
from dualscope.studies.provenance import software
from dualscope.studies.store import Run

if TYPE_CHECKING:
    from dualscope.regression.experiment import Experiment

ROWS, SETTINGS, PROVENANCE = "regression.parquet", "regression.yaml", "provenance.json"
_WORDS = ("experiment", "panel", "series", "metric", "x_name")
SCHEMA = pa.schema(
    [(c, pa.string() if c in _WORDS else pa.int64() if c in ("seed", "n") else pa.float64()) for c in COLUMNS]
)


def save(
    results: Results, experiment: "Experiment", place: str | Path, seconds: float, quick: bool = False
) -> Path:
    """Write a finished experiment. The rows come last: once they are there, everything is.

    ``quick`` is kept beside the checks, which then decide nothing: there were too few steps and seeds.
    """
    run = Run.create(place)
    settings = {"experiment": results.experiment, **experiment.model_dump(mode="json")}
    run.folder.write(SETTINGS, yaml.safe_dump(settings, sort_keys=False).encode())
    checks = [vars(check) for check in results.checks]
    about = {**software(), "seconds": round(seconds, 1), "quick": quick, "checks": checks}
    run.write_json(PROVENANCE, about)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(results.rows, schema=SCHEMA), sink, compression="zstd")
    run.folder.write(ROWS, bytes(sink.getvalue()))
    return Path(place)


def check_place(place: str | Path, experiment: str) -> None:
    """Before minutes are spent: whether the folder can be written to, and holds nothing else."""
    run = Run.create(place)
    if run.folder.exists("study.yaml"):
        raise InputError(f"--out {place}: holds a study's run; give a folder of its own")
    if run.folder.exists(SETTINGS):
        there = (yaml.safe_load(run.folder.read(SETTINGS)) or {}).get("experiment")
        if there != experiment:
            raise InputError(f"--out {place}: holds the experiment '{there}'; give a folder of its own")


def load(place: str | Path) -> pa.Table:
    """The rows of a finished experiment."""
    path = Path(place) / ROWS
    if not path.exists():
        raise InputError(f"{place}: no {ROWS} there; give what `dualscope regression --out` wrote")
    return pq.read_table(path)
