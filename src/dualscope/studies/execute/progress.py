"""How far a run is: bars on a terminal, plain lines elsewhere. On standard error, so that output stays clean."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from dualscope.studies.execute.outcome import Event, Outcome, Started, Waiting

PLANNING = "planning"  # said at once: data and tokenizers are read before it is known how much there is to do


class Reporter:
    """Hears of events and shows them."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self._bars: Progress | None = None
        self._overall: TaskID | None = None
        self._there = self._total = 0
        self._ended: set[str] = set()
        self._began = time.monotonic()

    def __enter__(self) -> Reporter:
        if self.console.is_terminal and not self.quiet:
            self._bars = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                # The cell at hand: cut where the terminal is narrow, so that counter and time left stay.
                TextColumn(
                    "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
                ),
                expand=True,
                console=self.console,
                transient=True,
            )
            self._bars.start()
            self._overall = self._bars.add_task(PLANNING, total=None)
        elif not self.quiet:
            self._line(PLANNING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, total: int, there: int) -> None:
        """So many pieces in all, so many of them stored before."""
        self._there, self._total, self._began = there, total, time.monotonic()
        self._ended = set()
        if self._bars is not None:
            if self._overall is not None:
                self._bars.remove_task(self._overall)
            self._overall = self._bars.add_task("", total=total, completed=there)
        elif there < total and not self.quiet:
            self._line(f"{total} to do" if not there else f"{total - there} of {total} to do")

    def tell(self, event: Event) -> None:
        if isinstance(event, Started):
            if self._bars is not None and self._overall is not None:
                self._bars.update(self._overall, description=event.about)
            return
        if isinstance(event, Waiting):
            self._line(f"waiting for {event.pieces} pieces that others are at: {'; '.join(event.holders)}")
            return
        self._ended.add(event.key)  # each once: what a lost worker had done is heard of again
        if self._bars is not None and self._overall is not None:
            self._bars.update(self._overall, completed=self._done)
        failed = event.state == "failed"
        if failed or (self._bars is None and not self.quiet):
            self._line(self._describe(event))

    @property
    def _done(self) -> int:
        return self._there + len(self._ended)

    def _describe(self, event: Outcome) -> str:
        count = f"[{self._done}/{self._total}]"
        if event.state == "failed":
            return f"{count} FAILED {event.about}: {event.reason}"
        took = "was there" if event.state == "was there" else f"{event.seconds:.1f} s"
        return f"{count} {event.about}: {took}"

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False)
