"""Learning rates that were not given: chosen by a run, kept as rates/<key>.json with the curve they come from, or
recorded in a model's card (``lr: recorded``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualscope.core.canonical import fingerprint
from dualscope.core.config_file import check_head
from dualscope.core.errors import InputError
from dualscope.core.halving import FEWEST, GRID, SIZES, Round, Score, choice_of, rounds_of
from dualscope.core.spec import ModelSpec
from dualscope.core.untrusted_files import reading, text_of
from dualscope.models.files.source import find
from dualscope.studies.choosing import RateJob
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.study import Study

if TYPE_CHECKING:
    from dualscope.models import Model
    from dualscope.tasks import Task

ADVICE = "mend the card, or give the rates with --lr"


@dataclass(frozen=True)
class RatePiece:
    """One rate of one seed on some of the spare examples: what a worker computes of a search."""

    job: RateJob
    seed: int
    rate: float
    first: int
    last: int

    @property
    def model(self) -> ModelSpec:
        return self.job.model

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def key(self) -> str:
        return fingerprint([self.job.key, self.seed, self.rate, self.first, self.last])

    @property
    def path(self) -> str:
        return f"rate-pieces/{self.key}.json"

    def __str__(self) -> str:
        return (
            f"{self.model.name} · {self.task} seed {self.seed} · learning rate {self.rate:g} on examples "
            f"{self.first} to {self.last - 1}"
        )

    def is_stored(self, run: RunFolder) -> bool:
        return _is_piece(run.recall(self.path))

    def compute(self, model: Model, task: Task, _run: RunFolder, _heard: Callable[[str], None]) -> dict[str, Any]:
        from dualscope.learners.rate import Trial

        job = self.job
        trial = Trial(model, task, job.seeds, job.shots, job.queries, job.balanced, job.gd_demonstrations)
        score = trial.score(self.seed, self.rate, self.first, self.last)
        nll = score.nll if math.isfinite(score.nll) else None
        return {"right": score.right, "nll": nll, "n": score.n, "examples": len(trial.examples)}


def pending(run: RunFolder, job: RateJob) -> list[RatePiece]:
    """What a search still has to compute of its present round; none where a rate is chosen, which is then stored."""
    scores: dict[tuple[float, int, int], Score] = {}
    done: dict[tuple[float, int], Score] = {}
    examples = SIZES[-1]
    while True:
        rounds = rounds_of(GRID, examples, done)
        number, now = len(rounds) - 1, rounds[-1]
        if all((rate, number) in done for rate in now.candidates):
            run.write_json(f"rates/{job.key}.json", _answer(job, scores, done, rounds, examples))
            return []
        missing = []
        for rate in (0.0, *now.candidates):
            for seed in job.seeds:
                piece = RatePiece(job, seed, rate, now.first, now.last)
                found = run.recall(piece.path)
                if not _is_piece(found):
                    missing.append(piece)
                    continue
                nll = math.inf if found["nll"] is None else found["nll"]
                scores[rate, seed, number] = Score(found["right"], nll, found["n"])
                examples = min(examples, found["examples"])
            if all((rate, seed, number) in scores for seed in job.seeds):
                done[rate, number] = sum((scores[rate, seed, number] for seed in job.seeds), Score())
        if missing:
            return missing


def _is_piece(found: dict[str, Any]) -> bool:
    whole = all(isinstance(found.get(name), int) for name in ("right", "n", "examples"))
    return whole and found["n"] > 0 and isinstance(found.get("nll", 0), float | int | None)


def pieces_at_most(job: RateJob) -> list[int]:
    """How many examples each piece of a search is of, where there are spare examples enough.

    The model before any learning is tried in every round, beside the rates that are left.
    """
    found, candidates = [], len(GRID)
    for first, last in zip((0, *SIZES), SIZES, strict=False):
        found += [last - first] * (candidates + 1) * len(job.seeds)
        candidates = max(FEWEST, math.ceil(candidates / 2))
    return found


def _answer(
    job: RateJob,
    scores: Mapping[tuple[float, int, int], Score],
    done: Mapping[tuple[float, int], Score],
    rounds: Sequence[Round],
    examples: int,
) -> dict[str, Any]:
    choice = choice_of(GRID, scores, done, rounds, examples)
    return {
        "model": job.model.name,
        "task": job.task,
        "seeds": list(job.seeds),
        "shots": job.shots,
        "rate": choice.rate,
        "at_edge": choice.at_edge,
        "examples": choice.n,
        "curve": [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in choice.curve],
    }


def chosen(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What was chosen in this run so far, by the job's key. A damaged choice is none: it is chosen again."""
    names = run.folder.names("rates", ".json")
    found = {name.removesuffix(".json"): run.recall(f"rates/{name}") for name in names}
    return {key: choice for key, choice in found.items() if _is_choice(choice)}


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
        raise InputError(f"{card}: rates: expected `task: rate` lines, found {type(rates).__name__}; {ADVICE}")
    return rates


def _rate(value: object, task: str, card: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise InputError(f"{card}: rates: {task}: expected a rate above 0, found {str(value)[:60]!r}; {ADVICE}")
