"""A study as Weights & Biases keeps it offline: a group of runs in a folder, uploaded only by `wandb sync`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualscope.core.environment import environment
from dualscope.export.tracked import TrackedStudy, by_step, client, project, said_by

QUIET = {
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
    with environment({**QUIET, **places}), said_by("wandb"):
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
