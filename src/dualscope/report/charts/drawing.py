"""A panel drawn by matplotlib: the few kinds of traces that the charts use."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from dualscope.report.charts.chart import Panel

STYLE = Path(__file__).parents[1] / "templates" / "style.css"
MARKERS = {
    "circle": "o",
    "diamond": "D",
    "square": "s",
    "triangle-up": "^",
    "x": "X",
    "star": "*",
    "hexagon": "h",
    "cross": "P",
    "triangle-down": "v",
    "pentagon": "p",
    "triangle-left": "<",
    "triangle-right": ">",
    "line-ns": "|",
}
DASHES: dict[str, Any] = {
    "solid": "-",
    "dot": ":",
    "dash": "--",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 2, 2, 2)),
}


@cache
def colours() -> dict[str, str]:
    """The page's light colours, from its own style sheet.

    >>> colours()["blue"]
    '#0072b2'
    """
    root = STYLE.read_text(encoding="utf-8").partition("}")[0]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", root))


def colour(name: str) -> str:
    return colours()[name.removeprefix("@")]


def draw(axes: Any, panel: Panel) -> None:
    """Put a panel's traces and labels on matplotlib's axes."""
    kinds = {trace["type"] for trace in panel.data}
    if panel.title:
        axes.set_title(_text(panel.title), loc="left", fontsize=8)
    for side in ("x", "y"):
        title = panel.layout.get(f"{side}axis", {}).get("title", {}).get("text", "")
        getattr(axes, f"set_{side}label")(_text(title))
    axes.spines[["top", "right"]].set_visible(False)
    if "heatmap" in kinds:
        _heatmap(axes, panel.data[0])
    elif panel.layout.get("yaxis", {}).get("type") == "category":
        _rows(axes, panel)
    elif "bar" in kinds:
        _columns(axes, panel)
    else:
        _lines(axes, panel)
    for side in ("x", "y"):
        span = panel.layout.get(f"{side}axis", {}).get("range")
        if span and "heatmap" not in kinds:
            getattr(axes, f"set_{side}lim")(span)


def _text(text: str) -> str:
    """Labels are plain text here: no entities, and a dollar is a dollar."""
    return unescape(text).replace("$", r"\$")


def _numbers(values: Any) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)


def _reach(trace: dict[str, Any], key: str) -> np.ndarray | None:
    bars = trace.get(key)
    return None if bars is None else np.array([bars["arrayminus"], bars["array"]], float)


def _heatmap(axes: Any, trace: dict[str, Any]) -> None:
    grid = np.array([_numbers(row) for row in trace["z"]])
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis", vmin=trace["zmin"], vmax=trace["zmax"])
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05)
    raised = (re.sub(r"^10<sup>(.*)</sup>$", r"$10^{\1}$", text) for text in trace["colorbar"]["ticktext"])
    bar.set_ticks(trace["colorbar"]["tickvals"], labels=list(raised))
    for side in ("x", "y"):
        if side in trace:  # names instead of numbers; of many, every few
            every = max(1, len(trace[side]) // 10)
            at = range(0, len(trace[side]), every)
            getattr(axes, f"set_{side}ticks")(at, [_text(trace[side][i]) for i in at])


def _rows(axes: Any, panel: Panel) -> None:
    """Categories from top to bottom; series of dots one under the other, bars stacked."""
    names = panel.layout["yaxis"].get("categoryarray")
    if names is None:
        names = list(dict.fromkeys(y for trace in panel.data for y in trace["y"]))[::-1]
    place = {name: i for i, name in enumerate(names)}
    grouped = panel.layout.get("scattermode") == "group"
    step = 0.75 / max(1, len(panel.data))
    left = np.zeros(len(names))
    for index, trace in enumerate(panel.data):
        at = np.array([place[y] for y in trace["y"]], float)
        values, shade, name = _numbers(trace["x"]), colour(trace["marker"]["color"]), _text(trace["name"])
        if trace["type"] == "bar":
            hatch = "////" if trace["marker"].get("pattern", {}).get("shape") else None
            start = left[at.astype(int)]
            axes.barh(at, values, 0.6, start, color=shade, hatch=hatch, edgecolor="white", linewidth=0, label=name)
            left[at.astype(int)] += np.nan_to_num(values)
            continue
        symbol = str(trace["marker"].get("symbol", "circle"))
        hollow = symbol.endswith("-open")
        moved = at + (index - (len(panel.data) - 1) / 2) * step if grouped else at
        axes.errorbar(
            values,
            moved,
            xerr=_reach(trace, "error_x"),
            fmt=MARKERS.get(symbol.removesuffix("-open"), "o"),
            color=shade,
            markersize=4,
            markerfacecolor="white" if hollow else shade,
            linewidth=1,
            label=name,
        )
    axes.set_yticks(range(len(names)), [_text(name) for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.axvline(0, color=colour("@axis"), linewidth=0.6, zorder=0)


def _columns(axes: Any, panel: Panel) -> None:
    names = list(dict.fromkeys(x for trace in panel.data for x in trace["x"]))
    width = 0.8 / max(1, len(panel.data))
    for index, trace in enumerate(panel.data):
        at = np.array([names.index(x) for x in trace["x"]], float)
        moved = at + (index - (len(panel.data) - 1) / 2) * width
        shade = colour(trace["marker"]["color"])
        axes.bar(moved, _numbers(trace["y"]), width, color=shade, label=_text(trace["name"]))
    axes.set_xticks(range(len(names)), [_text(name) for name in names])


def _lines(axes: Any, panel: Panel) -> None:
    across = panel.layout.get("xaxis", {})
    words = across.get("type") == "category"
    for trace in panel.data:
        line = trace.get("line", {})
        shade = colour(line.get("color") or trace["marker"]["color"])
        symbol = str(trace.get("marker", {}).get("symbol", "circle"))
        if trace.get("fill"):
            outline = _numbers(trace["x"]), _numbers(trace["y"])
            axes.fill(*outline, color=shade, alpha=trace["opacity"], linewidth=0, label=_text(trace["name"]))
            continue
        axes.errorbar(
            [_text(x) for x in trace["x"]] if words else _numbers(trace["x"]),
            _numbers(trace["y"]),
            yerr=_reach(trace, "error_y"),
            color=shade,
            linestyle=DASHES[line.get("dash", "solid")] if "lines" in trace["mode"] else "none",
            marker=MARKERS[symbol.removesuffix("-open")] if "markers" in trace["mode"] else "",
            markersize=2.5,
            linewidth=1.2,
            elinewidth=0.7,
            label=_text(trace["name"]),
        )
    if across.get("type") == "log":
        axes.set_xscale("log")
    places = panel.layout.get("yaxis", {})
    if places.get("type") == "log":
        axes.set_yscale("log")
        return
    if "ticktext" in places:
        axes.set_yticks(places["tickvals"], [_text(name) for name in places["ticktext"]])
        return
    axes.axhline(0, color=colour("@axis"), linewidth=0.6, zorder=0)
