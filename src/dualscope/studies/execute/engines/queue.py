"""Work in waiting, handed out so that a worker keeps the model that it has loaded."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from dualscope.core.folder import Folder
from dualscope.studies.execute.outcome import Event, Outcome
from dualscope.studies.execute.work import Work
from dualscope.studies.run_folder.storage import RunFolder

ATTEMPTS = 2


class Queue:
    """Hands out work by affinity, and takes back what a lost worker was doing."""

    def __init__(self, works: Sequence[Work], tell: Callable[[Event], None], run: str) -> None:
        self._waiting = list(works)
        self._tell = tell
        self._run = RunFolder(Folder.at(run))
        self._lost: Counter[Work] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def next(
        self, last: Work | None, at_work: Sequence[Work] = (), suits: Callable[[Work], bool] = lambda _work: True
    ) -> Work | None:
        """For a worker that last did ``last``: the same model and task, the same model, or what no other
        worker is at the model of. None where others are at all that is left, or none of it ``suits``.
        """
        busy, claimed = {work.model for work in at_work}, {work.claimed.key for work in at_work}

        def fit(work: Work) -> tuple[bool, bool, bool]:
            return (
                last is not None and work.affinity == last.affinity,
                last is not None and work.model == last.model,
                work.model not in busy,
            )

        free = [work for work in self._waiting if work.claimed.key not in claimed and suits(work)]
        if not free:
            return None
        best = max(free, key=fit)  # the first of the best: the plan's order
        self._waiting.remove(best)
        return best

    def take_back(self, work: Work, how: str) -> None:
        """A worker was lost. What it had stored stays; the rest is tried again, then cell by cell, so that only the
        cell fails that no worker survives.
        """
        self._lost[work] += 1
        if self._lost[work] < ATTEMPTS:
            self._waiting.insert(0, work)
        elif len(work.cells) > 1:
            self._waiting[:0] = [replace(work, cells=(cell,)) for cell in work.cells]
        else:
            self.refuse(
                work, f"its worker was lost {ATTEMPTS} times ({how}); on a machine short of memory use fewer --jobs"
            )

    def refuse(self, work: Work, reason: str) -> None:
        """It cannot be done: all that it was for fails with this reason."""
        for cell in work.cells:
            with contextlib.suppress(OSError):  # a full disk; the outcome that is told says it
                self._run.fail(cell.id, f"{reason}\n\n{cell}\n")
            self._tell(Outcome(cell.id, str(cell), "failed", reason=reason))
        if not work.cells:
            self._tell(Outcome(work.claimed.key, str(work.claimed), "failed", reason=reason))
