"""The hash of a model's files, remembered between runs: gigabytes are hashed once. No torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from dualscope.core.folder import Folder
from dualscope.models.digest import digest_of_files
from dualscope.models.source import find


def model_digest(name: str, offline: bool = False) -> str:
    """A hash of a model's weights, configuration and tokenizer; the files are fetched if need be."""
    source = find(name, offline)
    files = [*source.weights(), *source.texts()]
    known = {file.name: _remembered(file) for file in files}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:20]


def is_here(name: str) -> bool:
    """Whether a model's files can be read without fetching anything."""
    source = find(name, offline=True)
    return source.folder is not None or source.file("config.json") is not None


def _remembered(file: Path) -> str:
    """A file's digest, from memory where its path, inode, size and times of change are as they were.

    The inode's own time (ctime) is there because anybody can set the other one back.
    """
    real = file.resolve()
    state = real.stat()
    key = f"{real}|{state.st_ino}|{state.st_size}|{state.st_mtime_ns}|{state.st_ctime_ns}"
    cache = Folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualscope")
    try:
        known = dict(json.loads(cache.read("digests.json")))
    except (OSError, ValueError):  # none yet, or not ours: a cache may always be made anew
        known = {}
    if key not in known:
        known[key] = digest_of_files([real])
        try:
            cache.write("digests.json", json.dumps(known).encode())
            cache.sweep(60.0)
        except OSError:  # a read-only home: hash again next time
            pass
    return str(known[key])
