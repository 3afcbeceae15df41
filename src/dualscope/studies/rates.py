"""Learning rates that a run has chosen: kept as rates/<key>.json, with the curve they were chosen from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dualscope.studies.plan import RateJob
from dualscope.studies.run_folder.storage import Run

if TYPE_CHECKING:
    from dualscope.models import Model
    from dualscope.tasks import Task


def choose(job: RateJob, model: Model, task: Task) -> dict[str, Any]:
    """Choose a rate as DESIGN says of ``--lr auto``; the answer is ready for JSON."""
    from dualscope.learners.rate import choose_rate

    choice = choose_rate(
        model,
        task,
        seeds=job.seeds,
        shots=job.shots,
        queries=job.queries,
        balanced=job.balanced,
        gd_demonstrations=job.gd_demonstrations,
    )
    return {
        "model": job.place.name,
        "task": job.task,
        "seeds": list(job.seeds),
        "shots": job.shots,
        "rate": choice.rate,
        "at_edge": choice.at_edge,
        "examples": choice.n,
        "curve": [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in choice.curve],
    }


def chosen(run: Run) -> dict[str, dict[str, Any]]:
    """What was chosen in this run so far, by the job's key. A damaged choice is none: it is chosen again."""
    names = run.folder.names("rates", ".json")
    found = {name.removesuffix(".json"): run.recall(f"rates/{name}") for name in names}
    return {key: choice for key, choice in found.items() if _is_choice(choice)}


def is_chosen(run: Run, key: str) -> bool:
    return _is_choice(run.recall(f"rates/{key}.json"))


def _is_choice(choice: dict[str, Any]) -> bool:
    rate = choice.get("rate")
    return (
        isinstance(rate, float | int)
        and not isinstance(rate, bool)
        and 0 < rate < math.inf
        and all(isinstance(choice.get(name), str) for name in ("model", "task"))
        and isinstance(choice.get("curve"), list)
        and all(isinstance(row, dict) for row in choice["curve"])
    )
