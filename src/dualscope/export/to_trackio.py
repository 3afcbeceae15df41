"""A study in Trackio's local database: a project, and a run in it for each learner and task."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualscope.core.environment import environment
from dualscope.export.tracked import TrackedStudy, by_step, client, project, said_by

ELSEWHERE = ("SPACE_ID", "SERVER_URL", "WEBHOOK_URL", "BUCKET_ID", "DATASET_ID")
"""Settings of Trackio that would send runs to another machine."""


def to_trackio(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write to ``folder``, or to where Trackio keeps its runs; what is there already is not repeated."""
    nowhere = dict.fromkeys(f"TRACKIO_{name}" for name in ELSEWHERE)
    there = {} if folder is None else {"TRACKIO_DIR": str(folder.absolute())}
    # What Trackio prints names commands that do not know the folder.
    with environment({**nowhere, **there}), said_by("trackio"), contextlib.redirect_stdout(io.StringIO()):
        trackio = client("trackio")
        name = project(study.name)
        kept = {run.config["dualscope_id"] for run in _runs(trackio, name) if "dualscope_id" in (run.config or {})}
        still = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        for number, run in enumerate(study.runs, 1):
            tell(f"{number} of {len(study.runs)}: {run.name}")
            if run.id in kept:
                continue
            config = {**run.params, "dualscope_id": run.id} | ({"answer": run.answer} if run.answer else {})
            live = trackio.init(name, name=run.name, group=str(run.params["task"]), config=config, **still)
            live.log(dict(run.metrics), step=0)
            for group, curves in (("by_layer", run.by_layer), ("by_training_step", run.by_step)):
                for step, values in by_step(curves).items():
                    live.log({f"{group}/{key}": value for key, value in values.items()}, step=step)
            trackio.finish()
        if study.id not in kept:
            config = {**study.params, "answer": study.answer, "dualscope_id": study.id}
            live = trackio.init(name, name=study.name, group="study", config=config, **still)
            live.log({"runs": len(study.runs)}, step=0)
            for file in study.files:  # while its run goes on: else each would be put into a folder of its own name
                trackio.save(file)
            trackio.finish()
    place = "" if folder is None else f"TRACKIO_DIR={folder.absolute()} "
    return [f'look at it: {place}trackio show --project "{name}"']


def _runs(trackio: Any, name: str) -> list[Any]:
    try:
        return list(trackio.Api().runs(name))
    except ValueError:  # there is no such project yet
        return []
