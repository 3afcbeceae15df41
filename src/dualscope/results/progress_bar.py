"""A progress bar for what is computed in Python: on a terminal and in a notebook, nowhere else unless asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def steps(total: int, wanted: bool | None) -> Iterator[Callable[[str], None]]:
    """Inside, ``begin(name)`` says which of ``total`` steps begins; the bar disappears at the end.

    >>> with steps(2, wanted=False) as begin:
    ...     begin("gd")
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = (console.is_terminal or console.is_jupyter) if wanted is None else wanted
    if shown and console.is_jupyter:  # there a bar of rich's is an output of the cell, and stays
        with _in_a_notebook(total) as begin:
            yield begin
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    about = TextColumn("{task.description}", markup=False)
    with Progress(*columns, about, console=console, transient=True, disable=not shown) as bars:
        bar = bars.add_task("", total=total)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            bars.update(bar, completed=begun, description=name)
            begun += 1

        yield begin


@contextmanager
def _in_a_notebook(total: int) -> Iterator[Callable[[str], None]]:
    """One line of the error stream, written over at every step and cleared at the end."""
    begun, longest = 0, 0

    def show(line: str) -> None:
        nonlocal longest
        longest = max(longest, len(line))
        sys.stderr.write("\r" + line.ljust(longest))
        sys.stderr.flush()

    def begin(name: str) -> None:
        nonlocal begun
        filled = round(24 * begun / max(total, 1))
        show(f"{'#' * filled}{'.' * (24 - filled)} {begun}/{total} {name}")
        begun += 1

    try:
        yield begin
    finally:
        show("")
        sys.stderr.write("\r")
