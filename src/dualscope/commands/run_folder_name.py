"""Where a run without a name goes: after what is run, and never into another study's folder."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualscope.studies.study import Study

SEVERAL = 3  # names; more are counted


def run_name(base: str, models: Sequence[str], tasks: Sequence[str]) -> str:
    """The study's or preset's name, then the models and tasks that were named on the command line.

    >>> run_name("quick", [], []), run_name("", ["models/my-model"], ["sst2", "mine.yaml"])
    ('quick', 'my-model-sst2-mine')
    >>> run_name("", ["small=models/checkpoint-10"], [])
    'small'
    """
    parts = [base, _named(models, "models"), _named(tasks, "tasks")]
    return re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part)).strip("-") or "run"


def _named(names: Sequence[str], what: str) -> str:
    if len(names) > SEVERAL:
        return f"{len(names)}-{what}"
    from dualscope.studies.paths import named_model

    found = [called or source.rstrip("/").rsplit("/", 1)[-1] for called, source in map(named_model, names)]
    return "-".join(re.sub(r"\.ya?ml$", "", name) for name in found)


def free_folder(name: str, study: "Study", under: str = "runs") -> str:
    """The folder of that name, or the first numbered one that holds no other study."""
    place, number = f"{under}/{name}", 1
    while holds_another(place, study):
        number += 1
        place = f"{under}/{name}-{number}"
    return place


def holds_another(place: str, study: "Study") -> bool:
    """Whether a folder holds a study, and not this one as it is kept: with full paths."""
    from dualscope.core.folder import Folder
    from dualscope.studies.paths import anchored
    from dualscope.studies.study import Study

    if "://" in place:
        return False
    kept = Study.build(anchored(study.model_dump(), Path.cwd())).dump()
    try:
        return Folder(place).read("study.yaml").decode() != kept
    except (OSError, UnicodeDecodeError):
        return False
