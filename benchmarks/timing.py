"""Timing that waits for the device, and tables of what was seen."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import dualscope


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 3, warmup: int = 1) -> float:
    """The median over repeats, after warming up."""
    times = []
    for i in range(warmup + repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """How much more memory the device held at the worst moment than before; None where it is not counted."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dualscope": dualscope.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=120).print(table)


def save(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
