"""What is needed to repeat a run, gathered without importing what it describes."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dualscope._version import __version__
from dualscope.studies.cell import Sitting
from dualscope.studies.plan import Plan
from dualscope.studies.resolve import Resolver
from dualscope.studies.run_folder.storage import Run
from dualscope.tasks import Episode

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy", "pyarrow", "ray")
FILE = "provenance.json"


def record(
    run: Run, resolver: Resolver, plan: Plan, weights: Mapping[str, str], where: Mapping[str, Any]
) -> None:
    """Write provenance.json: versions and settings of this run, beside the facts of earlier ones."""
    known = run.read_json(FILE)
    content = {
        **known,
        **software(),
        "dtype": resolver.study.dtype,
        "where": dict(where),
        "weights": {**known.get("weights", {}), **{_short(plan, model): h for model, h in weights.items()}},
        "tasks": {
            **known.get("tasks", {}),
            **{resolver.task(e.task).name: resolver.task(e.task).digest for e in resolver.study.tasks},
        },
        "episodes": episodes(plan, resolver, known.get("episodes", {})),
        "cells": sorted(cell.id for cell in plan.whole),
        "plugins": resolver.plugins,
        "names": resolver.memory,
    }
    if content != known:
        run.write_json(FILE, content)


def episodes(plan: Plan, resolver: Resolver, known: Mapping[str, Any]) -> dict[str, Any]:
    """Every episode of the plan, beside those that are known; one that cannot be drawn is an `InputError`."""
    found = dict(known)
    for sitting in plan.sittings():
        key = _episode_key(sitting)
        if sitting.shots and key not in found:
            found[key] = _draw(sitting, resolver)
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


def note_devices(run: Run, cells: Sequence[str]) -> None:
    """Add the devices that cells were computed on, as their files say."""
    known = run.read_json(FILE)
    found = {run.notes(cell).get("device", "?") for cell in cells} | set(known.get("devices", []))
    if sorted(found) != known.get("devices"):
        run.write_json(FILE, known | {"devices": sorted(found)})


def _short(plan: Plan, model: str) -> str:
    return next((cell.sitting.place.name for cell in plan.cells if cell.sitting.place.model == model), model)


def _episode_key(sitting: Sitting) -> str:
    parts = [sitting.task, f"seed {sitting.seed}", f"order {sitting.order}", f"{sitting.shots} shots"]
    if sitting.demo_labels != "gold":
        parts.append(f"{sitting.demo_labels} labels ({sitting.corrupt})")
    return ", ".join([*parts, *(["balanced"] if sitting.balanced else [])])


def _draw(sitting: Sitting, resolver: Resolver) -> dict[str, Any]:
    named = {resolver.task(entry.task).name: resolver.task(entry.task) for entry in resolver.study.tasks}
    return Episode.draw(
        named[sitting.task],
        shots=sitting.shots,
        seed=sitting.seed,
        queries=sitting.queries,
        order=sitting.order,
        balanced=sitting.balanced,
        demo_labels=sitting.demo_labels,  # type: ignore[arg-type]
        corrupt=sitting.corrupt,  # type: ignore[arg-type]
    ).provenance()


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
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
