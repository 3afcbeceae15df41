"""A grid of numbers as colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualscope.report.charts.chart import Panel, plain

DIVERGING: tuple[tuple[float, str], ...] = ((0.0, "@vermilion"), (0.5, "@paper"), (1.0, "@blue"))


def heat_map(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
    title: str,
    task: str | None = None,
    diverging: bool = False,
) -> Panel:
    """Rows from below to above, each with its name. ``diverging``: 0 is paper, positive blue, negative orange."""
    finite = [value for line in values for value in line if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    ticks = [round(low + i * (high - low) / 4, 3) for i in range(5)]
    data = {
        **coloured(values, low, high, {tick: f"{tick:.3g}" for tick in ticks}, "%{y}, %{x}: %{z:.3f}"),
        **({"colorscale": DIVERGING} if diverging else {}),
        "x": list(columns),
        "y": [plain(name) for name in rows],
    }
    layout = {
        "xaxis": {"title": {"text": plain(column_title)}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": plain(row_title)}, "type": "category", "showgrid": False},
    }
    return Panel([data], layout, title, 130 + 18 * len(rows), task=task)


def coloured(
    z: Sequence[Sequence[float | None]], low: float, high: float, ticks: Mapping[float, str], hover: str
) -> dict[str, Any]:
    """plotly's heat map from ``low`` to ``high``, with these ticks beside its colours."""
    return {
        "type": "heatmap",
        "z": z,
        "zmin": low,
        "zmax": high if high > low else low + 1,
        "colorscale": "Cividis",
        "colorbar": {
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "thickness": 10,
            "outlinewidth": 0,
            "len": 1,
        },
        "hovertemplate": f"{hover}<extra></extra>",
    }
