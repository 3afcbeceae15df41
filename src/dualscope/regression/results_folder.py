"""An experiment's results in a run folder: ``regression.parquet``, ``regression.yaml``, ``provenance.json``."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dualscope.core.command_hints import called
from dualscope.core.config_file import parsed_yaml
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.rows import EXPERIMENT_COLUMNS
from dualscope.core.untrusted_files import reading
from dualscope.regression.results import Results
from dualscope.studies.provenance import software
from dualscope.studies.run_folder.storage import RunFolder

if TYPE_CHECKING:
    from dualscope.regression.experiment import Experiment


CLAIMS = Path(__file__).parent / "experiments" / "claims.yaml"


@cache
def claims() -> dict[str, str]:
    """experiment -> the paper and its claim.

    >>> claims()["ahn"]
    'Ahn et al. 2023: a trained linear layer is a step of GD with the best preconditioner'
    """
    found: dict[str, str] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return found


ROWS, SETTINGS, PROVENANCE = "regression.parquet", "regression.yaml", "provenance.json"
_WORDS = ("experiment", "panel", "series", "metric", "x_name")
SCHEMA = pa.schema(
    [
        (c, pa.string() if c in _WORDS else pa.int64() if c in ("seed", "n") else pa.float64())
        for c in EXPERIMENT_COLUMNS
    ]
)


def save(
    results: Results,
    experiment: "Experiment",
    place: str | Path,
    seconds: float,
    quick: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished experiment. The rows come last: once they are there, everything is, and is theirs.

    ``quick`` is kept beside the checks, which then decide nothing: there were too few steps and seeds. ``about``:
    what else is known of how it was computed (the machine, the date).
    """
    run = RunFolder.create(place)
    run.folder.remove(ROWS)
    run.folder.write(SETTINGS, _settings(results.experiment, experiment))
    kept = results.as_dict()
    told = {name: kept[name] for name in ("checks", "figures", "tables", "notes")}
    told |= {"seconds": round(seconds, 1), "quick": quick, "claim": claims().get(results.experiment, "")}
    run.write_json(PROVENANCE, {**software(), "where": {"device": experiment.device}, **told, **(about or {})})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(results.rows, schema=SCHEMA), sink, compression="zstd", compression_level=19)
    run.folder.write(ROWS, bytes(sink.getvalue()))
    return Path(place)


def _settings(name: str, experiment: "Experiment") -> bytes:
    settings = {"experiment": name, **experiment.model_dump(mode="json")}
    return yaml.safe_dump(settings, sort_keys=False).encode()


WHERE = ("device", "compiled")
"""Settings that say where, not what."""


def check_place(place: str | Path, name: str, experiment: "Experiment") -> None:
    """Before minutes are spent: whether the folder can be written to, and holds nothing else."""
    run = RunFolder.create(place)
    if run.folder.exists("study.yaml"):
        raise InputError(f"--out {place}: holds a study's run; give a folder of its own")
    there = _stored(run, place)
    if there and there.get("experiment") != name:
        raise InputError(f"--out {place}: holds the experiment '{there.get('experiment')}'; give a folder of its own")
    if run.folder.exists(ROWS):
        for field, value in yaml.safe_load(_settings(name, experiment)).items():
            if field not in WHERE and there.get(field) != value:
                raise InputError(
                    f"{place}: holds results with {field} {there.get(field)}, and {value} was asked for; "
                    "give another folder with --out, or delete this one"
                )


def _stored(run: RunFolder, place: str | Path) -> dict[str, Any]:
    """The settings in a folder; empty where there are none."""
    if not run.folder.exists(SETTINGS):
        return {}
    try:
        stored, _ = parsed_yaml(run.folder.read(SETTINGS).decode(), SETTINGS)
    except (InputError, UnicodeDecodeError, OSError):
        raise InputError(
            f"{place}/{SETTINGS}: not a table of settings in YAML; give another folder with --out, or delete this one"
        ) from None
    return stored


def load(place: str | Path) -> pa.Table:
    """The rows of a finished experiment."""
    path = Path(place) / ROWS
    if not path.exists():
        raise InputError(f"{place}: no {ROWS} there; give what `dualscope regression --out` wrote")
    with reading(path):
        return pq.read_table(pa.BufferReader(Folder(place).read(ROWS)))


SHIPPED = Path(__file__).parent / "shipped_results"


def shipped_runs() -> dict[str, Path]:
    """experiment -> its run folder, of the full size."""
    found = {path.parent.name: path.parent for path in sorted(SHIPPED.glob("*/regression.parquet"))}
    if not found:
        raise InputError(f"this installation has no shipped regression results; run `{called('regression')}` instead")
    return found
