"""What a study leaves open (rates, and options of learners), chosen once a model and task: choices/<key>.json.

The rounds of a search are computed in pieces, a seed each, which several workers share and a killed run keeps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dualscope.choosing.halving import Choice, Rounds, Score, Search
from dualscope.core.canonical import canonical, fingerprint
from dualscope.core.spec import ModelSpec
from dualscope.core.words import DemoLabels, GdDemonstrations
from dualscope.studies.run_folder.storage import RunFolder

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models import Model
    from dualscope.tasks import Task


@dataclass(frozen=True)
class ChoiceJob:
    """What a learner leaves open, to be chosen: on the trained variant, over the study's seeds, on spare examples."""

    model: ModelSpec
    task: str
    data: str
    seeds: tuple[int, ...]
    shots: int
    queries: int
    balanced: bool
    gd_demonstrations: GdDemonstrations
    demo_labels: DemoLabels
    learner: str
    options: str  # those that are given, as JSON
    rounds: Rounds | None  # None: the learner chooses in a way of its own, over all seeds at once
    chooses_lr: bool = False
    code: str = ""

    @property
    def key(self) -> str:
        return fingerprint({**asdict(self), "model": self.model.facts})

    @property
    def path(self) -> str:
        return f"choices/{self.key}.json"

    def __str__(self) -> str:
        what = "learning rate" if self.chooses_lr and self.learner == "gd" else f"{self.learner}, what it leaves open"
        given = "" if self.options == "{}" else f" {self.options}"
        return f"{self.model.name} · {self.task} · {what}{given}, over {len(self.seeds)} seeds"

    def benches(self, model: Model, task: Task, only: int | None = None) -> list[Bench]:
        from dualscope.learners.chosen_settings import benches_of

        how = (self.seeds, self.shots, self.queries, self.balanced, self.gd_demonstrations, self.demo_labels)
        return benches_of(model, task, *how, only=only)


@dataclass(frozen=True)
class ChoicePiece:
    """What one worker computes of a choice: a seed's part of a round, or the whole where it is not made in rounds."""

    job: ChoiceJob
    seed: int = 0
    number: int = 0
    candidates: tuple[str, ...] | None = None  # as JSON; None: all that the learner names

    @property
    def model(self) -> ModelSpec:
        return self.job.model

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def key(self) -> str:
        return fingerprint([self.job.key, self.seed, self.number, self.candidates])

    @property
    def path(self) -> str:
        return f"choice-pieces/{self.key}.json" if self.job.rounds else self.job.path

    def __str__(self) -> str:
        part = f", seed {self.seed}, round {self.number + 1} of {len(self.job.rounds)}" if self.job.rounds else ""
        return f"{self.job}{part}"

    def is_stored(self, run: RunFolder) -> bool:
        found = run.recall(self.path)
        return found.get("whole") is True and _scores(found) is not None if self.job.rounds else is_choice(found)

    def compute(self, model: Model, task: Task, run: RunFolder, heard: Callable[[str], None]) -> dict[str, Any]:
        """What was tried is kept on the way, and goes on from there if it is interrupted."""
        from dualscope.choosing.halving import try_round
        from dualscope.learners import LEARNERS

        job, learner = self.job, LEARNERS[self.job.learner]()
        options = learner.options(**json.loads(job.options))
        if job.rounds is None:
            benches = job.benches(model, task)
            try:
                return _answer(job, learner.choose(benches, options))
            finally:
                for bench in benches:
                    bench.close()
        (bench,) = job.benches(model, task, only=self.seed)
        named = learner.candidates(model, options) if self.candidates is None else map(json.loads, self.candidates)
        tried = [job.rounds.settings_of(self.number, one) for one in named]

        def keep(scores: Mapping[str, Score]) -> None:
            run.write_json(self.path, _stored(scores))
            heard(f"{self}, {len(scores) - 1} of {len(tried)} tried")

        try:
            found = try_round(
                bench,
                tried,
                lambda on, candidates: learner.attempts(on, candidates, options),
                job.rounds.examples_of(self.number),
                learner.materials(options),
                _scores(run.recall(self.path)),
                keep,
            )
        finally:
            bench.close()
        return _stored(found) | {"whole": True}


def pending(run: RunFolder, job: ChoiceJob) -> list[ChoicePiece]:
    """What has to be computed next of a choice; none where it is made, which is then stored."""
    if is_choice(run.recall(job.path)):
        return []
    if job.rounds is None:
        piece = ChoicePiece(job)
        return [] if piece.is_stored(run) else [piece]
    search, done = Search(job.rounds, job.seeds), list[ChoicePiece]()
    while not search.is_over:
        pieces = [ChoicePiece(job, seed, search.number, search.candidates) for seed in search.seeds]
        if missing := [piece for piece in pieces if not piece.is_stored(run)]:
            return missing
        search.take({piece.seed: _scores(run.recall(piece.path)) or {} for piece in pieces})
        done += pieces
    run.write_json(job.path, _answer(job, search.choice()))
    for piece in done:
        run.folder.remove(piece.path)
    return []


def _answer(job: ChoiceJob, choice: Choice) -> dict[str, Any]:
    about = {"model": job.model.name, "task": job.task, "learner": job.learner, "options": json.loads(job.options)}
    about |= {"demo_labels": job.demo_labels, "seeds": list(job.seeds), "shots": job.shots}
    curve = [{name: _finite(value) for name, value in row.items()} for row in choice.curve]
    found = {"settings": choice.settings, "at_edge": choice.at_edge, "examples": choice.n, "more": choice.more}
    return about | found | {"curve": curve}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stored(scores: Mapping[str, Score]) -> dict[str, Any]:
    tried = [[json.loads(name), score.right, _finite(score.nll), score.n] for name, score in scores.items()]
    return {"tried": tried}


def _scores(found: Mapping[str, Any]) -> dict[str, Score] | None:
    """What `_stored` wrote. None where it is damaged: it is computed again."""
    try:
        return {
            canonical(settings): Score(int(right), math.inf if nll is None else float(nll), int(n))
            for settings, right, nll, n in found["tried"]
        }
    except (KeyError, TypeError, ValueError):
        return None


def chosen(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What was chosen in this run so far, by the job's key. A damaged choice is none: it is chosen again."""
    names = run.folder.names("choices", ".json")
    found = {name.removesuffix(".json"): run.recall(f"choices/{name}") for name in names}
    return {key: choice for key, choice in found.items() if is_choice(choice)}


def is_choice(choice: Mapping[str, Any]) -> bool:
    """Whether a file's content is a choice, as far as a plan and a page look at it."""
    kinds = {"settings": dict, "options": dict, "curve": list, "model": str, "task": str, "learner": str}
    if not all(isinstance(choice.get(name), kind) for name, kind in kinds.items()):
        return False
    lr = choice["settings"].get("lr", 1.0)
    return (
        isinstance(choice.get("examples"), int)
        and all(isinstance(row, dict) for row in choice["curve"])
        and isinstance(lr, float | int)
        and 0 < lr < math.inf
    )


def settings_of(run: RunFolder) -> dict[str, str]:
    """The chosen settings as JSON, by the job's key."""
    return {key: canonical(choice["settings"]) for key, choice in chosen(run).items()}


def most_pieces(jobs: Sequence[ChoiceJob]) -> int:
    """How many pieces the jobs come to at most."""
    return sum(1 if job.rounds is None else len(job.rounds) * len(job.seeds[: job.rounds.seeds]) for job in jobs)
