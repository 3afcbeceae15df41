"""A progress bar for what is computed in Python: on a terminal and in a notebook, nowhere else unless asked for."""

from __future__ import annotations

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
