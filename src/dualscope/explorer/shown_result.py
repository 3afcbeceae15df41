"""One learner's result as the page shows it: probabilities, early exits, likeness by layer and head, and its influence
matrix, which says what each demonstration taught each query.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dualscope.core.rows import MetricRow
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.report.charts.chart import short
from dualscope.report.charts.curves import Line, curve
from dualscope.report.charts.palette import colour

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.choosing.halving import Choice
    from dualscope.learners.bench import Bench
    from dualscope.metrics.measured_response import ResponseMeter
    from dualscope.models.reading.trace import Trace


LAYERED = ("sim_aou", "sim_am_delta")  # the change of attention's output, and of its scores (which have heads)
_ENDS: tuple[Literal["value", "low", "high"], ...] = ("value", "low", "high")
DIGITS = 9  # float32's: the page rounds for people, not here


def predictions(trace: Trace) -> dict[str, Any]:
    """Per query: the probabilities of the labels among themselves, at the end and, where read, after every layer."""
    found: dict[str, Any] = {
        "probabilities": _shares(trace.label_logprobs),
        "logprobs": _numbers(trace.label_logprobs),
        "predictions": trace.predictions.tolist(),
    }
    if trace.label_logprobs_at_layer is not None:
        found["exits"] = _shares(trace.label_logprobs_at_layer)
    return found


def likeness(
    rows: Iterable[MetricRow], learning: LearnerSpec, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Per metric: its mean, its layers, its heads, and the line that draws the layers.

    ``names``: what is measured in place of each metric; the metrics themselves where nothing is given.
    """
    kept = [row for row in rows if row["step"] is None and row["reference"] == IN_CONTEXT.label]
    found: dict[str, Any] = {}
    for metric, measured in (names or {name: name for name in LAYERED}).items():
        own = [row for row in kept if row["metric"] == measured]
        layers = [row for row in own if row["layer"] is not None and row["head"] is None]
        if not layers:
            continue
        heads: dict[int, list[float | None]] = {}
        for row in own:
            if row["head"] is not None and row["layer"] is not None:
                heads.setdefault(row["layer"], []).append(number(row["value"]))
        ends = [tuple(row[key] for row in layers) for key in _ENDS]
        line = Line(tuple(row["layer"] for row in layers if row["layer"] is not None), *ends)
        found[metric] = {
            "mean": next((number(row["value"]) for row in own if row["layer"] is None), None),
            "layers": [number(row["value"]) for row in layers],
            "heads": [heads[layer] for layer in sorted(heads)],
            "line": curve(learning.label, line, colour(learning), "dot" if learning.control else "solid", bars=False),
        }
    return found


def chosen(choice: Choice | None, bench: Bench) -> str | None:
    """What a learner has chosen for itself, and on what; None where it left nothing open."""
    if choice is None:
        return None
    settings = ", ".join(f"{name} {value}" for name, value in choice.settings.items() if not _is_list(value))
    if not bench.unaltered.spare:
        return f"{settings}: chosen by asking each demonstration after the others"
    return f"{settings}: chosen on {choice.n} other examples of the task"


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def band(controls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Per metric: the reach of the controls' lines, layer by layer, as the two lines that a fill lies between."""
    found: dict[str, Any] = {}
    for metric in LAYERED:
        lines = [one["likeness"][metric]["layers"] for one in controls if metric in one["likeness"]]
        lines = [line for line in lines if len(line) == max(map(len, lines))]  # of all layers
        layers = list(zip(*lines, strict=True))
        seen = [[value for value in values if value is not None] for values in layers]
        ends = [(low, [end(values) if values else None for values in seen]) for low, end in ((True, min), (False, max))]
        found[metric] = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "controls",
                "x": list(range(len(seen))),
                "y": values,
                "line": {"width": 0, "color": "@grey"},
                "hoverinfo": "skip",
                **({} if low else {"fill": "tonexty"}),
            }
            for low, values in ends
            if lines
        ]
    return {"lines": found}


def _shares(logprobs: Tensor) -> Any:
    return _numbers(logprobs.double().softmax(-1))


def _numbers(tensor: Tensor) -> Any:
    """Nested lists, None where a number is not finite: JSON has no NaN."""

    def clean(value: Any) -> Any:
        return [clean(one) for one in value] if isinstance(value, list) else number(value)

    return clean(tensor.double().cpu().tolist())


def number(value: float) -> float | None:
    """As JSON has it: None where it is not finite."""
    return short(value, DIGITS) if math.isfinite(value) else None


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
