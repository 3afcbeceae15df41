"""Weights leave the hub's cache once nobody of this run needs them any more: ``--evict``.

A model of the hub goes when the run folder holds every cell that the study has of it, of all shards and whoever
computed them. A model with a failed cell stays, because the same command will want it again; and so does every model
that was given as a folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dualscope.core.strangers import reason
from dualscope.models.files.source import CONFIG, find
from dualscope.studies.cell import Cell
from dualscope.studies.run_folder.storage import RunFolder


class Snapshot(NamedTuple):
    """One commit of one model in a cache of the hub's."""

    cache: Path
    repository: str
    commit: str


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

    def __init__(self, run: RunFolder, cells: Iterable[Cell]) -> None:
        self.run, self.notes = run, list[str]()
        self._waiting: dict[Snapshot, set[str]] = {}
        known: dict[str, Snapshot | None] = {}
        for cell in cells:
            model = cell.sitting.place.model
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
        name = f"{snapshot.repository}@{snapshot.commit[:7]}"
        try:
            freed = remove(snapshot)
        except (OSError, ValueError) as error:
            self.notes.append(f"{name} could not be evicted from {snapshot.cache} ({reason(error)})")
        else:
            self.notes.append(f"{name} was evicted from the hub cache: {freed / 2**20:.0f} MB are free again")
