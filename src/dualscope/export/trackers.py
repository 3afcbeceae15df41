"""A study in the local stores of experiment trackers, MLflow, Trackio and Weights & Biases: nothing is sent."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualscope.core.command_hints import environment
from dualscope.export.tracked import Tracked, TrackedStudy, by_step, client, project, said_by

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRACKING_URI": None, "MLFLOW_TRACKING_TOKEN": None}
STORE = "mlflow.db"
BATCH = 1000  # metrics in one request, MLflow's limit
LONGEST = 5000  # characters of a parameter


def to_mlflow(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write to ``folder``/mlflow.db, where `mlflow ui` looks; what is there already is not repeated."""
    folder = folder or Path()
    with environment(QUIET), said_by("mlflow"):
        folder.mkdir(parents=True, exist_ok=True)
        store = f"sqlite:///{(folder / STORE).absolute()}"
        tracker = client("mlflow").MlflowClient(tracking_uri=store)
        found = tracker.get_experiment_by_name(study.name)
        experiment = (
            tracker.create_experiment(study.name, artifact_location=(folder / "mlartifacts").absolute().as_uri())
            if found is None
            else found.experiment_id
        )
        if tracker.search_runs([experiment], f"tags.`dualscope.id` = '{study.id}' and status = 'FINISHED'"):
            tell("this study is there already, as it is now; nothing was added")
        else:
            _write(tracker, client("mlflow").entities, experiment, study, tell)
    return [f"look at it: mlflow ui --backend-store-uri {store}   (pip install mlflow)"]


def _write(tracker: Any, kinds: Any, experiment: str, study: TrackedStudy, tell: Callable[[str], None]) -> None:
    # The whole is ended last: one that was interrupted is not taken for finished.
    whole = tracker.create_run(
        experiment, run_name=study.name, tags={"dualscope.id": study.id, "mlflow.note.content": study.answer}
    ).info.run_id
    tracker.log_batch(whole, params=[kinds.Param(key, str(value)[:LONGEST]) for key, value in study.params.items()])
    for number, run in enumerate(study.runs, 1):
        tell(f"{number} of {len(study.runs)}: {run.name}")
        tags = {"mlflow.parentRunId": whole, "dualscope.id": run.id}
        tags |= {"answer": run.answer} if run.answer else {}
        id_ = tracker.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        tracker.log_batch(id_, params=[kinds.Param(key, str(value)[:LONGEST]) for key, value in run.params.items()])
        metrics = _metrics(run, kinds.Metric)
        for start in range(0, len(metrics), BATCH):
            tracker.log_batch(id_, metrics=metrics[start : start + BATCH])
        tracker.set_terminated(id_)
    for file in study.files:
        tracker.log_artifact(whole, str(file))
    tracker.set_terminated(whole)


def _metrics(run: Tracked, kind: Any) -> list[Any]:
    now = int(time.time() * 1000)
    found = [kind(name, value, now, 0) for name, value in run.metrics.items()]
    for group, curves in (("by_layer", run.by_layer), ("by_step", run.by_step)):
        found += [kind(f"{group}/{name}", value, now, step) for name, curve in curves.items() for step, value in curve]
    return found


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


OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
}


def to_wandb(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write offline runs to ``folder``/wandb. A run keeps its id, so what is synced twice is there once."""
    folder = folder or Path()
    places = dict.fromkeys(("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"), str(folder.absolute() / "wandb"))
    with environment({**OFFLINE, **places}), said_by("wandb"):
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        wandb = client("wandb")
        settings = wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="",
            disable_git=True,
            disable_code=True,
            save_code=False,
        )
        common = {"project": project(study.name), "dir": str(folder), "group": study.name, "settings": settings}
        for number, run in enumerate(study.runs, 1):
            tell(f"{number} of {len(study.runs)}: {run.name}")
            config = dict(run.params) | ({"answer": run.answer} if run.answer else {})
            live = wandb.init(id=run.id, name=run.name, config=config, job_type="learner", **common)
            for axis, curves in (("layer", run.by_layer), ("training_step", run.by_step)):
                live.define_metric(axis)
                live.define_metric(f"by_{axis}/*", step_metric=axis)
                for step, values in by_step(curves).items():
                    live.log({axis: step, **{f"by_{axis}/{name}": value for name, value in values.items()}})
            live.summary.update(dict(run.metrics))
            live.finish()
        live = wandb.init(
            id=study.id, name=study.name, notes=study.answer, config=dict(study.params), job_type="study", **common
        )
        _keep(wandb, live, study)
        live.finish()
    return [f"upload it, if you want to: wandb sync {folder / 'wandb'}/offline-run-*"]


def _keep(wandb: Any, live: Any, study: TrackedStudy) -> None:
    """The files of the whole as one artifact, and the report as a panel."""
    whole = wandb.Artifact(f"study-{study.id}", type="study")
    for file in study.files:
        whole.add_file(str(file))
    live.log_artifact(whole)
    live.summary.update({"answer": study.answer})
