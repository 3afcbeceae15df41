"""What a model came from: the training that it is a checkpoint of, and at which step."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dualscope.core.errors import InputError
from dualscope.core.spec import named_step
from dualscope.core.untrusted_files import json_of

STATES = (("training.json", "steps_done"), ("trainer_state.json", "global_step"))
"""Files in which a checkpoint says at which step it was saved: ours, and that of transformers' Trainer."""


class Lineage(NamedTuple):
    """A checkpoint's training, by name, and its step; None where nothing says so."""

    family: str
    step: int | None = None


def lineage(name: str, shown: str | None = None) -> Lineage:
    """Of a folder or of a name on the hub; ``shown`` is what the model is called where it is no checkpoint.

    What a checkpoint's own files say counts before its name.

    >>> lineage("EleutherAI/pythia-160m@step4000")
    Lineage(family='EleutherAI/pythia-160m', step=4000)
    >>> lineage("runs/mine/checkpoint-500")
    Lineage(family='mine', step=500)
    """
    folder = Path(name).expanduser()
    if "@" in name and not folder.is_dir():
        family, _, revision = name.rpartition("@")
        return Lineage(family, named_step(revision))
    named, said = named_step(folder.name), _said(folder)
    family = (folder.parent.name if named is not None else "") or shown or folder.name
    return Lineage(family, named if said is None else said)


def _said(folder: Path) -> int | None:
    for file, field in STATES:
        try:
            if (folder / file).is_file():
                found = json_of(folder / file).get(field)
                return found if isinstance(found, int) and found >= 0 else None
        except (InputError, OSError):  # only the report's axis is lost
            return None
    return None
