"""What ``dualscope run --dry-run`` says: the cells, with their estimated time and memory."""

import json
from typing import Any, Literal

import typer
from rich.console import Console


def show_plan(runner: Any, as_json: bool) -> None:
    """Every cell, whether it is stored, and what is estimated for it; for people or as JSON."""
    from rich.table import Table

    from dualscope.models.automatic import on_cpu
    from dualscope.studies.execute.estimate import Estimator
    from dualscope.studies.provenance import episodes

    plan = runner.plan()
    episodes(plan, runner.resolver, {})  # what the run would refuse is refused now
    stored = runner.run.stored()
    device: Literal["cpu", "cuda"] = "cpu" if on_cpu(runner.setting.device) else "cuda"
    estimator = Estimator(runner.run, plan.cells, runner.resolver, device)
    memory = {cell.id: estimator.memory(cell) for cell in plan.cells}
    lines = [
        {
            "id": cell.id,
            "cell": str(cell),
            "stored": cell.id in stored,
            "seconds": estimator.seconds(cell),
            "bytes": found.total if (found := memory[cell.id]) else None,
            "memory": found.parts if found else None,
        }
        for cell in plan.cells
    ]
    if as_json:
        rates = [str(job) for job in plan.rates]
        typer.echo(json.dumps({"cells": lines, "rates": rates, "notes": plan.notes}, indent=1))
        return
    table = Table("id", "cell", "state", "about", "memory")
    for line in lines:
        state = "stored" if line["stored"] else "to do"
        seconds = "?" if line["seconds"] is None else _duration(line["seconds"])
        table.add_row(line["id"][:8], line["cell"], state, seconds, _size(line["bytes"]))
    console = Console(highlight=False)
    console.print(table)
    todo = [line for line in lines if not line["stored"]]
    total = sum(line["seconds"] or 0.0 for line in todo)
    largest = max(todo, key=lambda line: line["bytes"] or 0, default=None)
    peak = largest["bytes"] or 0 if largest else 0
    console.print(f"{len(todo)} of {len(lines)} cells to do, about {_duration(total)}, up to {_size(peak)}")
    if largest and largest["memory"]:
        parts = ", ".join(f"{name} {_size(size)}" for name, size in largest["memory"].items() if size)
        where = "on the GPU" if device == "cuda" else "a process"
        console.print(f"the largest, {where}: {parts}", markup=False)
    for job in plan.rates:
        console.print(f"first: {job} (its cells are not listed)", markup=False)
    for note in plan.notes:
        console.print(note, markup=False)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**20:.0f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"
