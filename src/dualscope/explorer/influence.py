"""What each demonstration taught each query: a learner's influence matrix as the page shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.explorer.shown_result import number

if TYPE_CHECKING:
    from dualscope.metrics.measured_response import ResponseMeter


def influence_of(meter: ResponseMeter, learning: LearnerSpec) -> dict[str, Any]:
    """Queries x demonstrations: the change of the right label's log-odds when one label is flipped.

    With it ``correlation``, `response_influence`: how alike the matrix is to in-context learning's, less the mean over
    the queries; None where there is none, as with a single query.
    """
    began = time.perf_counter()
    measured = meter.measure(learning)
    table = measured.queries
    assert table is not None  # flip-one has always one
    alike = [row["value"] for row in measured.rows if row["metric"] == "response_influence"]
    return {
        "event": "influence",
        "values": [[number(value) for value in row] for row in table["influence"].to_pylist()],
        "demonstrations": table["demonstrations"].to_pylist()[0],
        "correlation": number(alike[0]) if learning != IN_CONTEXT else None,
        "notes": list(measured.notes),
        "seconds": time.perf_counter() - began,
    }
