"""How far a run is: one bar over all its phases on a terminal, elsewhere a line now and then.

All of it on standard error, so that output stays clean.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from dualscope.studies.execute.work import Event, Outcome, Started, Waiting

PLANNING = "planning"  # said at once: data and tokenizers are read before it is known how much there is to do
CONCLUDING = "findings and report"
CONCLUDING_SECONDS = 3.0  # what follows from the cells counts as a step of about this length
EVERY = 10.0  # seconds between lines where there is no terminal
TRUSTED = 10.0  # seconds that the estimate is taken at its word: the first piece loads the model as well


class Reporter:
    """Hears of events and shows them: one counter and one estimate, from the first choice of a rate to the report.

    With ``verbose`` every piece has a line of its own.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False, verbose: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True, force_jupyter=False)
        self.quiet, self.verbose = quiet, verbose
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._there = self._total = 0
        self._seconds: dict[str, float] = {}
        self._usual = 1.0  # seconds of a piece of which nothing is known
        self._expected = 0.0  # seconds of all that is to do, in the estimate's own measure
        self._ended: set[str] = set()
        self._began = self._said = self._heard = time.monotonic()

    def __enter__(self) -> Reporter:
        if self.console.is_terminal and not self.quiet:
            self._bars = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}"),
                _Gone(self),
                TextColumn("left"),
                _Left(self),
                # The cell at hand: cut where the terminal is narrow, so that counter and time left stay.
                TextColumn(
                    "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
                ),
                expand=True,
                console=self.console,
                transient=True,
            )
            self._bars.start()
            self._bar = self._bars.add_task(PLANNING, total=None, count="")
        elif not self.quiet:
            self._line(PLANNING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, total: int, there: int, seconds: Mapping[str, float] | None = None) -> None:
        """So many pieces over all phases, so many of them stored before; ``seconds`` are estimates of pieces by key.

        Said again where more is known: a search of a rate may end early.
        """
        first = not self._total
        self._there, self._total = there, total + 1  # one more: what follows from the cells
        self._seconds = dict(seconds or {})
        known = self._seconds.values()
        self._usual = sum(known) / len(known) if known else 1.0
        self._expected = sum(known) + self._usual * max(0, total - there - len(known)) + CONCLUDING_SECONDS
        if first:
            self._began = self._heard = time.monotonic()
        if first and there < total and self._bars is None and not self.quiet:
            stored = f", {there} of them stored before" if there else ""
            self._line(f"{self._total} steps{stored}")
        self._show()

    def tell(self, event: Event) -> None:
        if isinstance(event, Started):
            if self._bars is not None and self._bar is not None:
                self._bars.update(self._bar, description=event.about)
            return
        if isinstance(event, Waiting):
            self._line(f"waiting for {event.pieces} pieces that others are at: {'; '.join(event.holders)}")
            return
        self._ended.add(event.key)  # each once: what a lost worker had done is heard of again
        self._heard = time.monotonic()
        self._show()
        if event.state == "failed" or (self.verbose and not self.quiet):
            self._line(self._describe(event))
        elif self._bars is None and not self.quiet and self._heard - self._said >= EVERY:
            self._said = self._heard
            self._line(f"[{self._done}/{self._total}] {clock(self._gone)} gone, about {clock(self.left)} left")

    def conclude(self) -> None:
        """All cells are there; what follows from them is made now."""
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, description=CONCLUDING)

    @property
    def left(self) -> float | None:
        """Seconds to the end: the time that is gone, by what was done of all that was expected. None: not known yet.

        Both begin with some seconds that went as expected, so that a first piece that is slow does not make hours.
        """
        now = time.monotonic()
        done = self._worth
        if not done or not self._total:
            return None
        at_that_time = (self._heard - self._began + TRUSTED) * (self._expected - done) / (done + TRUSTED)
        return max(0.0, at_that_time - (now - self._heard))

    @property
    def _worth(self) -> float:
        """What was done, in the estimate's measure."""
        return sum(self._seconds.get(key, self._usual) for key in self._ended)

    @property
    def _gone(self) -> float:
        return time.monotonic() - self._began

    @property
    def _done(self) -> int:
        return self._there + len(self._ended)

    def _show(self) -> None:
        if self._bars is not None and self._bar is not None and self._total:
            self._bars.update(
                self._bar, total=self._expected, completed=self._worth, count=f"{self._done}/{self._total}"
            )

    def _describe(self, event: Outcome) -> str:
        count = f"[{self._done}/{self._total}]"
        if event.state == "failed":
            return f"{count} FAILED {event.about}: {event.reason}"
        took = "was there" if event.state == "was there" else f"{event.seconds:.1f} s"
        return f"{count} {event.about}: {took}"

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False)


class _Gone(ProgressColumn):
    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        super().__init__()

    def render(self, task: Task) -> Text:
        return Text(clock(self.reporter._gone), style="progress.elapsed")


class _Left(_Gone):
    def render(self, task: Task) -> Text:
        return Text(clock(self.reporter.left), style="progress.remaining")


def clock(seconds: float | None) -> str:
    """Hours, minutes, seconds.

    >>> clock(75.4), clock(None)
    ('0:01:15', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
