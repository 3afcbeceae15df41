"""A study in a local MLflow store: an experiment, a run for the whole, and under it a run for each learner and task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualscope.core.environment import environment
from dualscope.export.tracked import Tracked, TrackedStudy, client, said_by

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
