"""What is needed to repeat a run, gathered without importing what it describes."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dualscope._version import __version__
from dualscope.core.canonical import fingerprint
from dualscope.core.registry import ELSEWHERE, Description
from dualscope.core.spec import EpisodeSpec
from dualscope.core.words import Precision
from dualscope.studies.plan import Plan
from dualscope.studies.resolve import Resolver
from dualscope.studies.run_folder.storage import RunFolder

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy", "pyarrow", "ray")
FILE, PARTS, AT = "provenance.json", "provenance", "at"
KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        ("weights", "automatic", "tasks", "skipped_rows", "other_tasks", "episodes", "names", "where", "packages"), dict
    ),
    **dict.fromkeys(("cells", "devices", "checks", "figures"), list),
    **dict.fromkeys(("claim", "size", "machine", "date"), str),
    "seconds": (int, float),
}
NEEDED = {"checks": ("claim", "found", "holds"), "figures": ("metric", "title")}
"""What each entry of a list has, where readers count on it."""
TOGETHER = ("weights", "automatic", "tasks", "skipped_rows", "other_tasks", "episodes", "names", "devices")
"""What processes add to; of all else the last one's word counts."""


def record(
    run: RunFolder,
    resolver: Resolver,
    plan: Plan,
    weights: Mapping[str, str],
    where: Mapping[str, Any],
    dtypes: Mapping[str, Precision],
) -> None:
    """Keep the versions and settings of this run, beside the facts of earlier ones and of those that run now."""
    before = known(run)
    named = [entry.task for entry in resolver.study.tasks]
    chosen = {_short(plan, model): dtype for model, dtype in dtypes.items()}
    _keep(
        run,
        {
            **software(),
            "dtype": ", ".join(sorted(set(dtypes.values()))),
            **({"automatic": chosen} if resolver.study.dtype == "auto" else {}),
            "where": dict(where),
            "weights": {_short(plan, model): digest for model, digest in weights.items()},
            "tasks": {resolver.task(e.task).name: resolver.task(e.task).digest for e in resolver.study.tasks},
            "skipped_rows": {task.name: task.skipped for task in map(resolver.task, named) if task.skipped},
            # Which task the learners of each were taught in place of their own, where a control asks for that.
            "other_tasks": {c.episode.task: c.other_task[0] for c in plan.whole if c.other_task is not None},
            "episodes": episodes(plan, resolver, before.get("episodes", {})),
            "cells": list(dict.fromkeys(cell.id for cell in plan.whole)),
            "plugins": resolver.plugins,
            "names": resolver.memory,
        },
    )


def describe_learners(run: RunFolder) -> None:
    """What the run says of its learners, for findings and pages where the code of a plugin is not loaded."""
    for entry in known(run).get("names", {}).values():
        said = entry.get("description") if isinstance(entry, dict) else None
        learning = entry.get("learning") if isinstance(entry, dict) else None
        if isinstance(said, dict) and isinstance(learning, dict) and isinstance(learning.get("name"), str):
            ELSEWHERE[learning["name"]] = Description.from_facts(said)


def note_devices(run: RunFolder, cells: Sequence[str]) -> None:
    """Add the devices that cells were computed on, as their files say."""
    found = {run.notes(cell).get("device", "?") for cell in cells}
    if found - set(known(run).get("devices", [])):
        _keep(run, {"devices": sorted(found)})


def known(run: RunFolder) -> dict[str, Any]:
    """All that is known of a run: every process keeps a file of its own, so that none overwrites another's.

    What is damaged is left out: the next run writes it again.
    """
    names = [f"{PARTS}/{name}" for name in run.folder.names(PARTS, ".json")]
    parts = [_checked(run.recall(name)) for name in [FILE, *names]]
    merged: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: str(part.get(AT, ""))):
        for field, value in part.items():
            if field == "devices":
                merged[field] = sorted({*merged.get(field, []), *map(str, value)})
            else:
                merged[field] = {**merged.get(field, {}), **value} if field in TOGETHER else value
    return merged


def _checked(part: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that are not of their kind."""
    kept: dict[str, Any] = {k: v for k, v in part.items() if isinstance(v, KINDS.get(k, object))}
    if "episodes" in kept:
        kept["episodes"] = {k: v for k, v in kept["episodes"].items() if _is_episode(v)}
    for field, needed in NEEDED.items():
        if field in kept:
            kept[field] = [one for one in kept[field] if isinstance(one, dict) and {*needed} <= {*one}]
    return kept


def _is_episode(noted: Any) -> bool:
    """Whether demonstrations are named and have labels by their numbers, as runs note them."""
    if not isinstance(noted, dict):
        return False
    ids, labels = noted.get("demonstrations"), noted.get("labels_icl")
    return (
        (isinstance(ids, list) and isinstance(labels, list) and len(ids) == len(labels))
        and all(isinstance(one, str) for one in ids)
        and all(type(one) is int and one >= 0 for one in labels)
    )


def _keep(run: RunFolder, facts: Mapping[str, Any]) -> None:
    """A file of these facts (one that says the same is the same file), then all of them together for people."""
    run.write_json(f"{PARTS}/{fingerprint(facts)}.json", {**facts, AT: datetime.now(UTC).isoformat()})
    while True:
        names = run.folder.names(PARTS, ".json")
        run.write_json(FILE, known(run))
        if run.folder.names(PARTS, ".json") == names:  # else another process wrote in between, and would be missing
            return


def episodes(plan: Plan, resolver: Resolver, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Every episode of the plan, taken from those ``drawn`` before; one that cannot be drawn is an `InputError`."""
    found: dict[str, Any] = {}
    for episode in plan.episodes():
        key = _episode_key(episode)
        if episode.shots and key not in found:
            found[key] = drawn[key] if key in drawn else _draw(episode, resolver)
    return found


def software() -> dict[str, Any]:
    """The versions of all that computes."""
    return {
        "dualscope": __version__,
        "git": _git_hash(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _short(plan: Plan, model: str) -> str:
    return next((cell.episode.model.name for cell in plan.cells if cell.episode.model.source == model), model)


def _episode_key(episode: EpisodeSpec) -> str:
    parts = [episode.task, f"seed {episode.seed}", f"order {episode.order}", f"{episode.shots} shots"]
    if episode.demo_labels != "gold":
        parts.append(f"{episode.demo_labels} labels ({episode.corrupt})")
    if episode.queries_from is not None:
        parts.append(f"asked about {episode.queries_from[0]}")
    return ", ".join([*parts, *(["balanced"] if episode.balanced else [])])


def _draw(episode: EpisodeSpec, resolver: Resolver) -> dict[str, Any]:
    from dualscope.tasks import Episode

    named = {resolver.task(entry.task).name: resolver.task(entry.task) for entry in resolver.study.tasks}
    asked = {resolver.task(name).name: resolver.task(name) for name in resolver.study.queries_from if name}
    about = None if episode.queries_from is None else asked[episode.queries_from[0]]
    return Episode.from_spec(episode, named[episode.task], about).provenance()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_hash() -> str | None:
    """The commit of the checkout that this code is run from; None where it is an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
