"""One legend for all panels of a chart, drawn by the page and not by the plots, so that it is never cut off."""

from __future__ import annotations

from dataclasses import dataclass
from html import unescape
from typing import Any

from dualscope.report.charts.chart import Chart

DASHES = {"dot": "2 3", "dash": "6 4", "dashdot": "6 3 2 3", "longdash": "10 4", "longdashdot": "9 3 2 3"}
SHAPES = {
    "circle": "M15 7a4 4 0 1 1-8 0a4 4 0 1 1 8 0z",
    "diamond": "M11 2l5 5l-5 5l-5-5z",
    "square": "M7 3h8v8h-8z",
    "triangle-up": "M11 2.5l5 8.5h-10z",
    "x": "M7.5 2l3.5 3.5l3.5-3.5l1.5 1.5l-3.5 3.5l3.5 3.5l-1.5 1.5l-3.5-3.5l-3.5 3.5l-1.5-1.5l3.5-3.5l-3.5-3.5z",
    "star": "M11 1.5l1.6 3.6l3.9.4l-2.9 2.6l.8 3.9l-3.4-2l-3.4 2l.8-3.9l-2.9-2.6l3.9-.4z",
    "hexagon": "M11 2.2l4.2 2.4v4.8l-4.2 2.4l-4.2-2.4v-4.8z",
    "cross": "M9.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "triangle-down": "M11 11.5l5-8.5h-10z",
    "pentagon": "M11 2l5 3.7l-1.9 5.9h-6.2l-1.9-5.9z",
    "triangle-left": "M6.5 7l8.5-5v10z",
    "triangle-right": "M15.5 7l-8.5-5v10z",
    "line-ns": "M11 2v10",
}


@dataclass(frozen=True)
class LegendKey:
    """A series in the legend: its name and how it is drawn."""

    name: str
    colour: str
    """A variable of the style sheet."""
    shape: str = ""
    hollow: bool = False
    line: bool = False
    dash: str = ""
    bar: bool = False
    hatched: bool = False
    area: bool = False


def legend(chart: Chart) -> list[LegendKey]:
    """Every named series once, in the order in which people should read them."""
    found: dict[str, LegendKey] = {}
    for panel in chart.panels:
        traces = reversed(panel.data) if panel.by_task and "scattermode" in panel.layout else panel.data
        for trace in traces:
            name = unescape(trace.get("meta") or trace.get("name", ""))
            if name and name not in found:
                found[name] = _key(name, trace)
    return list(found.values())


def _key(name: str, trace: dict[str, Any]) -> LegendKey:
    marker, line = trace.get("marker", {}), trace.get("line", {})
    colour = str(line.get("color") or marker.get("color") or "@grey").removeprefix("@")
    if trace["type"] == "bar":
        return LegendKey(name, colour, bar=True, hatched=bool(marker.get("pattern", {}).get("shape")))
    if trace.get("fill"):
        return LegendKey(name, colour, area=True)
    symbol = str(marker.get("symbol", "circle"))
    shape = SHAPES.get(symbol.removesuffix("-open"), SHAPES["circle"])
    if "lines" in trace["mode"]:
        has_marks = "markers" in trace["mode"]
        return LegendKey(
            name,
            colour,
            shape if has_marks else "",
            symbol.endswith("-open"),
            True,
            DASHES.get(line.get("dash", ""), ""),
        )
    return LegendKey(name, colour, shape, symbol.endswith("-open"))
