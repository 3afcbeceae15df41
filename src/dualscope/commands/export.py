"""``dualscope export``: a run, as experiment trackers and spreadsheets keep it. Nothing leaves the machine."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dualscope.core.errors import InputError
from dualscope.core.folder import check_not_kept, local_path

if TYPE_CHECKING:
    from dualscope.trackers import TrackedStudy

Tracker = Literal["mlflow", "wandb", "trackio", "csv"]
Writer = Callable[["TrackedStudy", Path | None, Callable[[str], None]], list[str]]


def export(
    run: str = typer.Argument(metavar="RUN", help="A run folder (or fsspec URL)."),
    to: Tracker = typer.Option(
        help="Where to; each tracker's client is an extra, as in pip install 'dualscope[mlflow]'."
    ),
    out: str | None = typer.Option(
        None,
        metavar="DIR",
        help="A folder for it; if not given, where the tracker's own commands look (the current folder; Trackio: its "
        "cache), and a folder named after the run for csv.",
    ),
) -> None:
    """Write a run as a tracker keeps it: a tracked run for each learner and task, over all its seeds.

    Columns and options are its parameters, the aggregates its metrics (with .low and .high), layers its steps; study,
    report, summary and verdict are files of the whole. All of it stays on this machine: wandb writes offline runs.

    dualscope export runs/quick --to mlflow
    """
    from rich.console import Console

    from dualscope.trackers import tracked_study

    if out is not None and not out.strip():
        raise InputError("--out: an empty name; give a folder, or leave the option out")
    place = None if out is None else local_path("--out", out)
    if place is None and to != "trackio":  # which alone writes elsewhere than here
        check_not_kept("--out", Path())
    with tempfile.TemporaryDirectory() as scratch, Console(stderr=True).status("reading the run") as status:
        study = tracked_study(run, Path(scratch))
        try:
            said = _writer(to)(study, place, status.update)
        except OSError as error:
            raise InputError(f"--out {out or '.'}: cannot be written ({error.strerror or error})") from None
    typer.echo(f"{study.name}: {len(study.runs)} tracked runs")
    for line in said:
        typer.echo(line)


def _writer(to: Tracker) -> Writer:
    """A client is imported when it is asked for, and not before."""
    from dualscope import trackers

    writers: dict[Tracker, Writer] = {
        "mlflow": trackers.to_mlflow,
        "wandb": trackers.to_wandb,
        "trackio": trackers.to_trackio,
        "csv": trackers.to_csv,
    }
    return writers[to]
