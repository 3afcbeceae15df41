"""Learning rates that a model's card records (``lr: recorded``), under ``rates:`` at the head of its README.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualscope.core.config_file import check_head
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reading, text_of
from dualscope.models.files.source import find
from dualscope.studies.study import Study

ADVICE = "mend the card, or give the rates with --lr"


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
        raise InputError(f"{card}: rates: expected `task: rate` lines, found {type(rates).__name__}; {ADVICE}")
    return rates


def _rate(value: object, task: str, card: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise InputError(f"{card}: rates: {task}: expected a rate above 0, found {str(value)[:60]!r}; {ADVICE}")
