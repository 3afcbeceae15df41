"""Weights leave the hub's cache once this run needs them no more: ``--evict``.

A model of the hub goes when the run folder holds every cell that the study has of it, of all shards and
workers. Only what this run has brought into the cache goes, as it noted in its folder: other programs may need what was
there before. A model with a failed cell stays, because the same command will want it again; and so does every model
that was given as a folder.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dualscope.core.canonical import fingerprint
from dualscope.core.spec import CellSpec
from dualscope.core.untrusted_files import reason
from dualscope.models.loading.digest import is_here
from dualscope.models.loading.source import CONFIG, find
from dualscope.studies.run_folder.storage import RunFolder


class Snapshot(NamedTuple):
    """One commit of one model in a cache of the hub's."""

    cache: Path
    repository: str
    commit: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:7]}"

    @property
    def note(self) -> str:
        """Where a run folder says that it was downloaded: by whom it is the run's, on which machine is in its name."""
        return f"downloads/{fingerprint([socket.gethostname(), *map(str, self)])}.json"


def snapshot_of(model: str) -> Snapshot | None:
    """Where a model of the hub is kept on this machine; None for a folder, and for what is not there.

    >>> snapshot_of("embedded") is None
    True
    """
    source = find(model, offline=True)
    if source.folder is not None or source.repository is None:
        return None
    config = source.file(CONFIG)
    if config is None or config.parent.parent.name != "snapshots":
        return None
    return Snapshot(config.parents[3], source.repository, config.parent.name)


@contextmanager
def noting_download(run: RunFolder, model: str) -> Iterator[None]:
    """Inside, a model may be fetched; if it was, the run folder says so."""
    before = snapshot_of(model) if is_here(model) else None
    yield
    after = snapshot_of(model)
    if after is not None and after != before:
        run.write_json(after.note, {**after._asdict(), "cache": str(after.cache), "host": socket.gethostname()})


def remove(snapshot: Snapshot) -> int:
    """Remove a commit's files from the cache, those left that another commit shares: bytes that are free now."""
    from huggingface_hub import scan_cache_dir

    found = scan_cache_dir(snapshot.cache)
    own = {one for one in found.repos if (one.repo_type, one.repo_id) == ("model", snapshot.repository)}
    plan = replace(found, repos=frozenset(own)).delete_revisions(snapshot.commit)
    plan.execute()
    return int(plan.expected_freed_size)


class Eviction:
    """The models of a study that are to leave the cache, and the cells that each still waits for."""

    def __init__(self, run: RunFolder, cells: Iterable[CellSpec]) -> None:
        self.run, self.notes = run, list[str]()
        self._waiting: dict[Snapshot, set[str]] = {}
        known: dict[str, Snapshot | None] = {}
        for cell in cells:
            model = cell.episode.model.source
            if model not in known:
                known[model] = snapshot_of(model)
            if (snapshot := known[model]) is not None:
                self._waiting.setdefault(snapshot, set()).add(cell.id)

    def stored(self, cells: Iterable[str]) -> None:
        """These cells are in the run folder now."""
        there = set(cells)
        for snapshot, waiting in list(self._waiting.items()):
            waiting -= there
            if not waiting:
                del self._waiting[snapshot]
                self._evict(snapshot)

    def look(self) -> None:
        """The same of all that others have stored."""
        self.stored(self.run.stored())

    def _evict(self, snapshot: Snapshot) -> None:
        if not self.run.folder.exists(snapshot.note):
            self.notes.append(f"{snapshot} stays in the hub cache: it was there before this run")
            return
        try:
            freed = remove(snapshot)
        except (OSError, ValueError) as error:
            self.notes.append(f"{snapshot} could not be evicted from {snapshot.cache} ({reason(error)})")
        else:
            self.run.folder.remove(snapshot.note)  # who fetches it from now on is another
            self.notes.append(f"{snapshot} was evicted from the hub cache: {freed / 2**20:.0f} MB are free again")
