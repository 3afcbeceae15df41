"""Work in waiting, handed out so that a worker keeps the model that it has loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dualscope.studies.execute.outcome import Event, Outcome
from dualscope.studies.execute.worker import Work

ATTEMPTS = 3


class Queue:
    """Hands out work by affinity, and takes back what a lost worker was doing."""

    def __init__(self, works: Sequence[Work], tell: Callable[[Event], None]) -> None:
        self._waiting = list(works)
        self._tell = tell
        self._lost: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def next(self, last: Work | None, at_work: Sequence[Work] = ()) -> Work | None:
        """For a worker that last did ``last``: the same model and task, the same model, or what no other
        worker is at the model of."""
        if not self._waiting:
            return None
        busy = {work.place for work in at_work}

        def fit(work: Work) -> tuple[bool, bool, bool]:
            return (
                last is not None and work.affinity == last.affinity,
                last is not None and work.place == last.place,
                work.place not in busy,
            )

        best = max(self._waiting, key=fit)  # the first of the best: the plan's order
        self._waiting.remove(best)
        return best

    def take_back(self, work: Work, how: str) -> None:
        """A worker was lost. What it had stored stays; the rest is tried again, but not for ever."""
        key = work.sitting.key
        self._lost[key] += 1
        if self._lost[key] < ATTEMPTS:
            self._waiting.insert(0, work)
            return
        reason = (
            f"its worker was lost {ATTEMPTS} times ({how}); on a machine short of memory use fewer --jobs"
        )
        for cell in work.cells:
            self._tell(Outcome(cell.id, str(cell), "failed", reason=reason))
        if not work.cells:
            self._tell(Outcome(key, str(work.sitting), "failed", reason=reason))
