"""A fingerprint of a model: two runs with the same digest used the same numbers. No torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.spec import named_step
from dualscope.core.untrusted_files import json_of
from dualscope.core.words import AdapterMode
from dualscope.models.loading.adapter import adapter_files
from dualscope.models.loading.gguf_file import read_header
from dualscope.models.loading.source import find

if TYPE_CHECKING:
    import torch


_SHA256 = re.compile("[0-9a-f]{64}")


def model_digest(name: str, offline: bool = False, adapter: str | None = None, mode: AdapterMode = "merged") -> str:
    """A hash of a model's weights, configuration and tokenizer, and of an adapter; files are fetched if need be."""
    source = find(name, offline)
    if source.gguf is not None:
        read_header(source.gguf)
        known = {"model.gguf": remembered(source.gguf)}
    else:
        source.config()
        known = {file.name: remembered(file) for file in (*source.weights(), *source.texts())}
    if adapter is not None:
        known |= {f"adapter/{file.name}": remembered(file) for file in adapter_files(adapter)}
        known |= {"adapter": mode} if mode == "active" else {}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:20]


def is_here(name: str) -> bool:
    """Whether a model's files can be read without fetching anything."""
    source = find(name, offline=True)
    if source.is_local:
        return True
    try:
        return bool(source.weights())
    except InputError:  # some files are, as those of its tokenizer, and its weights are not
        return False


def cache_folder() -> Path:
    """Where what can be made again is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualscope"


def remembered(file: Path) -> str:
    """A file's digest, remembered between runs while its path, inode, size and times of change are as they were.

    The inode's own time (ctime) is there because any program can set the other one back.
    """
    real = file.resolve()
    state = real.stat()
    key = f"{real}|{state.st_ino}|{state.st_size}|{state.st_mtime_ns}|{state.st_ctime_ns}"
    cache = Folder(cache_folder())
    known = _cached(cache)
    if key not in known:
        known[key] = digest_of_files([real])
        try:
            cache.write("digests.json", json.dumps(known).encode())
            cache.sweep(60.0)
        except (OSError, InputError):  # a read-only home, a folder in its place: hash again next time
            pass
    return known[key]


def _cached(cache: Folder) -> dict[str, str]:
    """What is remembered; a cache that is damaged, or not ours, is made anew."""
    try:
        found = json.loads(cache.read("digests.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str) and _SHA256.fullmatch(value)}


def digest_of_files(files: Iterable[Path]) -> str:
    """sha256 over the sha256 of each file's content, in the order of their names.

    The hub's cache keeps large files under their own sha256, so a cached model of any size costs nothing.
    """
    whole = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        whole.update(_content(file).encode())
    return whole.hexdigest()


def _content(file: Path) -> str:
    real = file.resolve()
    if real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
        return real.name
    with real.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of_module(module: torch.nn.Module) -> str:
    """sha256 over the names, shapes, dtypes and bytes of a module's parameters, for a model built in memory.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> before = digest_of_module(layer)
    >>> _ = torch.nn.init.zeros_(layer.bias)
    >>> before == digest_of_module(layer), len(before)
    (False, 64)
    """
    import torch

    whole = hashlib.sha256()
    for name, tensor in module.named_parameters():
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # Viewed as bytes, because numpy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        whole.update(flat.numpy().data)
    return whole.hexdigest()


# What a model came from: the training that it is a checkpoint of, and at which step.


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
