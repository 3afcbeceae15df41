"""Published figures, to stand beside a run's own: never in its averages, never in its verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dualscope.report.charts.curves import Look, line_trace
from dualscope.report.charts.palette import PUBLISHED

FILE = Path(__file__).parent / "published.json"
DASH = {"gd": "dashdot", "lcgd": "longdashdot"}


@dataclass(frozen=True)
class PublishedFigure:
    """One published number."""

    source: str
    task: str
    learner: str
    metric: str
    value: float
    variant: str = "trained"
    uncertain: bool = False
    """The publication does not say exactly what was computed: shown in tables only."""
    std: float | None = None
    runs: int | None = None
    per_layer: tuple[float, ...] = ()
    size: str = "1.3B"


@dataclass(frozen=True)
class Publications:
    label: str
    model: str
    checkpoint: str
    sources: dict[str, str]
    short: dict[str, str]
    notes: dict[str, str]
    figures: tuple[PublishedFigure, ...]

    def find(self, task: str, metric: str, learner: str | None = None) -> list[PublishedFigure]:
        """Those that may be drawn for a task and metric, and a learner if one is named.

        >>> [f.value for f in publications().find("sst2", "sim_aou_norm", "gd")]
        [0.1091, 0.1105]
        """
        return [
            f
            for f in self.figures
            if (f.task, f.metric, f.variant, f.uncertain) == (task, metric, "trained", False)
            and (learner is None or f.learner == learner)
        ]


@cache
def publications() -> Publications:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    figures = tuple(
        PublishedFigure(**{**entry, "per_layer": tuple(entry.get("per_layer", ()))}) for entry in content.pop("entries")
    )
    return Publications(**content, figures=figures)


def layer_traces(
    task: str, metric: str, learners: Sequence[str], beside: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Published lines for a task and metric, stretched to the depth of the model that they stand beside."""
    last, found = round(max(max(trace["x"]) for trace in beside)), []
    for learner, figure in ((name, one) for name in learners for one in publications().find(task, metric, name)):
        if depth := len(figure.per_layer) - 1 if figure.per_layer else 0:
            look = Look(PUBLISHED, dash=DASH.get(learner, "dot"), width=1.3)
            x, reaches = (
                [round(i / depth * last, 3) for i in range(depth + 1)],
                [(y, None, None) for y in figure.per_layer],
            )
            line = line_trace(f"{learner}: {publications().label}", x, reaches, look, False, "%{text}: ")
            found.append({**line, "mode": "lines", "text": [f"layer {i} of {depth + 1}" for i in range(depth + 1)]})
    return found
