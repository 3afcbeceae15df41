"""What ``dualscope run --dry-run`` says: how much there is to do, with estimated time and memory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dualscope.core.errors import InputError
from dualscope.core.spec import CellSpec
from dualscope.models.loading.automatic_precision import on_cpu


def show_plan(runner: Any, as_json: bool, verbose: bool = False) -> None:
    """How many cells each model and task has, and what they cost; with ``verbose`` or as JSON, cell by cell."""
    from dualscope.studies.choices import most_pieces
    from dualscope.studies.execute.cost import Estimator
    from dualscope.studies.execute.work import Work
    from dualscope.studies.provenance import episodes

    plan = runner.plan()
    episodes(plan, runner.resolver, {})  # what the run would refuse is refused now
    stored = runner.run.stored()
    device: Literal["cpu", "cuda"] = "cpu" if on_cpu(runner.setting.device) else "cuda"
    total = _memory_here(runner.setting.device)
    estimator = Estimator(runner.run, plan.cells, runner.resolver, device, total)
    memory = {cell.id: estimator.memory(cell) for cell in plan.cells}
    lines = [
        {
            "id": cell.id,
            "cell": str(cell),
            "stored": cell.id in stored,
            "seconds": estimator.seconds(cell),
            "bytes": found.total if (found := memory[cell.id]) else None,
            "memory": found.parts if found else None,
            "files": found.files if found else None,
        }
        for cell in plan.cells
    ]
    searches: list[dict[str, Any]] = [
        {"search": str(job), "pieces": most_pieces([job]), "seconds": estimator.choice_seconds(job)}
        for job in plan.choices
    ]
    later = runner.later(plan)
    if as_json:
        said = {
            "cells": lines,
            "choices": searches,
            "cells_after_choices": len(later),
            "notes": [*plan.asides, *plan.notes],
        }
        typer.echo(json.dumps(said, indent=1))
        return
    console = Console(highlight=False)
    if lines:
        console.print(_cell_by_cell(lines) if verbose else _by_task(plan.cells, lines))
    for note in [*plan.asides, *plan.notes] if verbose else plan.notes:
        console.print(f"note: {note}", markup=False)
    for search in searches:
        console.print(
            f"first: {search['search']}: up to {search['pieces']} pieces, {_about([search['seconds']])}", markup=False
        )
    if later:
        about = _about([estimator.seconds(cell) for cell in later])
        console.print(f"then {len(later)} cells with what is chosen, {about}")
    todo = [line for line in lines if not line["stored"]]
    about = _about([line["seconds"] for line in todo])
    console.print(f"{len(todo)} of {len(lines)} listed cells to do, {about}")
    undone = [*(cell for cell in plan.cells if cell.id not in stored), *later]
    needs = [need for cell in undone if (need := estimator.memory(cell))]
    if needs:
        largest = max(needs, key=lambda need: need.total)
        parts = ", ".join(f"{name} {_size(size)}" for name, size in largest.parts.items() if size)
        where = "on the GPU" if device == "cuda" else "a process"
        console.print(f"up to {_size(largest.total)} {where}: {parts}", markup=False)
    if files := max((need.files for need in needs), default=0):
        console.print(f"traces of up to {_size(files)} more are kept in files, in TMPDIR or else /var/tmp")
    works = [Work(episode, cells) for episode, cells in plan.episodes().items()]
    if (processes := runner.processes(works)) > 1:
        console.print(f"{processes} processes share the work, and each needs that memory")
    if lines and not verbose:
        console.print("cell by cell: --verbose", style="dim")


def _by_task(cells: Sequence[CellSpec], lines: Sequence[dict[str, Any]]) -> Table:
    """A line for each model, variant and task, however many cells these have."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell, line in zip(cells, lines, strict=True):
        model = cell.episode.model
        groups.setdefault((model.name, model.variant, cell.episode.task), []).append(line)
    table = Table(
        "model",
        "variant",
        "task",
        "cells",
        "stored",
        "about",
        "memory",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for names, own in groups.items():
        todo = [line["seconds"] for line in own if not line["stored"]]
        known = [seconds for seconds in todo if seconds is not None]
        about = _duration(sum(known) if len(known) == len(todo) else None)
        stored, size = len(own) - len(todo), max((line["bytes"] or 0 for line in own), default=0)
        table.add_row(*names, str(len(own)), str(stored), about, _size(size or None))
    return table


def _cell_by_cell(lines: Sequence[dict[str, Any]]) -> Table:
    table = Table("id", "cell", "state", "about", "memory")
    for line in lines:
        state = "stored" if line["stored"] else "to do"
        table.add_row(line["id"][:8], line["cell"], state, _duration(line["seconds"]), _size(line["bytes"]))
    return table


def _memory_here(device: str) -> int | None:
    """Bytes of the device that would compute; None where this machine has no such device."""
    if on_cpu(device):  # without torch
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    from dualscope.models.loading.device_and_precision import resolve_all, total_memory

    try:
        return total_memory(resolve_all(device)[0])
    except InputError:
        return None


def _about(seconds: Sequence[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    if len(known) < len(seconds):
        return "for how long is not known (a model is not here yet, or a learner leaves settings open)"
    return f"about {_duration(sum(known))}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**20:.0f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"
