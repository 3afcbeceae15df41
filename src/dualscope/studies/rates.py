"""Learning rates that nobody typed: chosen by a run, kept as rates/<key>.json with the curve they were chosen from, or
recorded in a model's card (``lr: recorded``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualscope.core.config_file import check_head
from dualscope.core.errors import InputError
from dualscope.core.strangers import reading, text_of
from dualscope.models.files.source import find
from dualscope.studies.config import Study
from dualscope.studies.plan import RateJob
from dualscope.studies.run_folder.storage import Run

if TYPE_CHECKING:
    from dualscope.models import Model
    from dualscope.tasks import Task

ADVICE = "mend the card, or give the rates with --lr"


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


def recorded_rates(models: Sequence[str], tasks: Sequence[str]) -> dict[tuple[str, str], float]:
    """The rate of each model and task whose card names one, under ``rates:`` at the head of its README.md."""
    found = {}
    for model in models:
        folder = find(model, offline=True).folder
        card = folder / "README.md" if folder is not None else None
        if card is None or not card.exists():
            continue
        rates = _rates(card)
        found.update({(model, task): _rate(rates[task], task, card) for task in tasks if task in rates})
    return found


def asks_for_recorded(study: Study) -> bool:
    """Whether any of a study's rates are to be those of the cards: else nobody need read them."""
    asked = [study.lr, *(task.lr for task in study.tasks), *(learner.lr for learner in study.learners)]
    return "recorded" in asked


def _rates(card: Path) -> dict[Any, Any]:
    from huggingface_hub import ModelCard

    text = text_of(card)
    if not text.lstrip().startswith("---"):
        return {}
    check_head(text, str(card))
    with reading(f"{card}: the fields at its head", ADVICE):
        rates = ModelCard(text, ignore_metadata_errors=True).data.to_dict().get("rates", {})
    if not isinstance(rates, dict):
        raise InputError(
            f"{card}: rates: expected `task: rate` lines, found {type(rates).__name__}; {ADVICE}"
        )
    return rates


def _rate(value: object, task: str, card: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise InputError(f"{card}: rates: {task}: expected a rate above 0, found {str(value)[:60]!r}; {ADVICE}")
