"""Several models by one name: revisions in braces, folders by a star."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError
from dualscope.models.files.gguf_file import is_gguf
from dualscope.studies.paths import named_model

MOST = 1000  # models by one name
_BRACES = re.compile(r"\{([^{}]*)\}")


def all_matching(models: Any, beside: Path | None = None) -> Any:
    """A study's field `models` with each model by its own name; what is no text is left to who validates it."""
    if isinstance(models, str):
        return matching(models, beside)
    if not isinstance(models, (list, tuple)) or not all(isinstance(model, str) for model in models):
        return models
    for model in models:
        if models.count(model) > 1:
            raise InputError(f"{model!r} is there twice")
    return list(dict.fromkeys(each for model in models for each in matching(model, beside)))


def matching(pattern: str, beside: Path | None = None) -> list[str]:
    """The models that a name with braces or stars stands for, checkpoints in the order of their numbers.

    Folders are looked for ``beside`` the study's file, if there is one, and else in the working folder.

    >>> matching("EleutherAI/pythia-160m@step{1000,4000}")
    ['EleutherAI/pythia-160m@step1000', 'EleutherAI/pythia-160m@step4000']
    >>> matching("embedded")
    ['embedded']
    >>> matching("mine=models/x")
    ['mine=models/x']
    """
    called, source = named_model(pattern)
    names = _alternatives(source)
    found = list(dict.fromkeys(each for name in names for each in _folders(name, pattern, beside)))
    if called is None:
        return found
    if len(found) > 1:
        raise InputError(f"model '{pattern}': one name, and {len(found)} models; give each a name of its own")
    return [f"{called}={found[0]}"]


def _alternatives(text: str) -> list[str]:
    names = [text]
    while _BRACES.search(names[0]):  # all names have the same braces left
        names = [each for name in names for each in _first_braces(name)]
        if len(names) > MOST:
            raise InputError(f"model '{text[:80]}': its braces stand for more than {MOST:,} models")
    return names


def _first_braces(name: str) -> list[str]:
    found = _BRACES.search(name)
    assert found is not None
    before, after = name[: found.start()], name[found.end() :]
    return [before + part.strip() + after for part in found[1].split(",", MOST)]


def _folders(name: str, pattern: str, beside: Path | None) -> list[str]:
    if "*" not in name or os.path.isdir(name):  # a folder may be called so
        return [name]
    if beside is not None and not Path(name).expanduser().is_absolute():
        with suppress(InputError):
            return _folders(str(beside / name), pattern, None)
    if "**" in name:
        raise InputError(
            f"model '{pattern[:80]}': two stars would look through everything below; give one for each folder: */*"
        )
    path = Path(name).expanduser()
    root = Path(path.anchor) if path.is_absolute() else Path()
    try:
        matched = list(root.glob(str(path.relative_to(root))))
    except (OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"model '{pattern}': no pattern of folders ({error})") from None
    found = [folder for folder in matched if folder.is_dir()]
    models = [folder for folder in found if (folder / "config.json").is_file()]
    models += [file for file in matched if is_gguf(file)]
    if not models:
        seen = f"{len(found)} folders match, and none holds a config.json" if found else "no folder matches"
        raise InputError(
            f"model '{pattern}': {seen} (a star stands for folders on this machine, not for names on the hub)"
        )
    return [str(folder) for folder in sorted(models, key=_by_number)]


def _by_number(folder: Path) -> list[tuple[int, str]]:
    """checkpoint-900 before checkpoint-1000."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", str(folder))]
