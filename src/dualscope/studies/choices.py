"""Settings that learners leave open, chosen once a model and task: kept as choices/<key>.json, with their curve."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualscope.core.canonical import canonical
from dualscope.core.halving import FIGURES
from dualscope.core.words import DemoLabels
from dualscope.studies.choosing import Choosing
from dualscope.studies.run_folder.storage import RunFolder

if TYPE_CHECKING:
    from dualscope.learners.trials import Row, Trials
    from dualscope.models import Model
    from dualscope.tasks import Task


@dataclass(frozen=True)
class ChoiceJob(Choosing):
    """What a learner leaves open, to be chosen: on the trained variant, over the study's seeds, on spare examples."""

    demo_labels: DemoLabels
    learner: str
    options: str  # those that are given, as JSON
    code: str = ""

    @property
    def path(self) -> str:
        return f"choices/{self.key}.json"

    def __str__(self) -> str:
        given = "" if self.options == "{}" else f" {self.options}"
        return f"{self.model.name} · {self.task} · {self.learner}{given}: settings over {len(self.seeds)} seeds"

    def is_stored(self, run: RunFolder) -> bool:
        return is_choice(run.recall(self.path))

    def compute(self, model: Model, task: Task, run: RunFolder, heard: Callable[[str], None]) -> dict[str, Any]:
        """What was tried is kept on the way, and the choice goes on from there if it is interrupted."""
        from dualscope.learners.trials import Trials

        place = f"choice-pieces/{self.key}.json"

        def keep(rows: Mapping[str, Row]) -> None:
            run.write_json(place, {"tried": {key: _finite(row) for key, row in rows.items()}})
            heard(f"{self}, {len(rows)} tried")

        found = choose(self, model, task, Trials(_tried(run.recall(place)), keep))
        if run.folder.exists(place):
            run.folder.remove(place)
        return found


def _tried(kept: dict[str, Any]) -> dict[str, Row]:
    """What `ChoiceJob.compute` kept. A row that is not whole is none: it is tried again."""
    rows = kept.get("tried")
    return {
        key: {**row, "nll": math.inf if row["nll"] is None else row["nll"]}
        for key, row in (rows if isinstance(rows, dict) else {}).items()
        if isinstance(row, dict) and row.keys() >= set(FIGURES)
    }


def choose(job: ChoiceJob, model: Model, task: Task, trials: Trials | None = None) -> dict[str, Any]:
    """The choice, ready for JSON."""
    from dualscope.learners import LEARNERS, Bench
    from dualscope.learners.spare import spare_of
    from dualscope.tasks import Episode, make_lesson

    episodes = [
        Episode.draw(task, job.shots, seed, job.queries, balanced=job.balanced, demo_labels=job.demo_labels)
        for seed in job.seeds
    ]
    benches = []
    for episode in episodes:
        lesson = make_lesson(episode, model.tokenizer, model.max_positions, gd_demonstrations=job.gd_demonstrations)
        benches.append(Bench(model, lesson, spare=spare_of(lesson, model, episodes), trials=trials))
    learner = LEARNERS[job.learner]()
    options = learner.options(**json.loads(job.options))
    try:
        choice = learner.choose(benches, options)
    finally:
        for bench in benches:
            bench.close()
    return {
        "model": job.model.name,
        "task": job.task,
        "learner": job.learner,
        "options": json.loads(job.options),
        "demo_labels": job.demo_labels,
        "seeds": list(job.seeds),
        "shots": job.shots,
        "settings": choice.settings,
        "at_edge": choice.at_edge,
        "examples": choice.n,
        "curve": [_finite(row) for row in choice.curve],
        "more": choice.more,
    }


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def chosen(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What was chosen in this run so far, by the job's key. A damaged choice is none: it is chosen again."""
    names = run.folder.names("choices", ".json")
    found = {name.removesuffix(".json"): run.recall(f"choices/{name}") for name in names}
    return {key: choice for key, choice in found.items() if is_choice(choice)}


def is_choice(choice: dict[str, Any]) -> bool:
    """Whether a file's content is what `choose` writes, as far as a plan and a page look at it."""
    kinds = {"settings": dict, "options": dict, "curve": list, "model": str, "task": str, "learner": str}
    return (
        all(isinstance(choice.get(name), kind) for name, kind in kinds.items())
        and isinstance(choice.get("examples"), int)
        and all(isinstance(row, dict) for row in choice["curve"])
    )


def settings_of(run: RunFolder) -> dict[str, str]:
    """The chosen settings as JSON, by the job's key."""
    return {key: canonical(choice["settings"]) for key, choice in chosen(run).items()}
