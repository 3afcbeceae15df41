"""A panel drawn by matplotlib: the few kinds of traces that the charts use."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from dualscope.report.charts.chart import Panel
from dualscope.report.charts.palette import DIVERGING

ENDS = "dualscope_ends"  # where axes keep the ends of their lines, and the names that are to stand there
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


def draw(axes: Any, panel: Panel, letters: int = 60, size: float = 8.0) -> set[str]:
    """Put a panel's traces and labels on matplotlib's axes; returns the series that need no legend, being labelled."""
    kinds = {trace["type"] for trace in panel.data}
    said: set[str] = set()
    if panel.title:
        axes.set_title(_wrapped(panel.title, letters), loc="left", fontsize=size)
    for side in ("x", "y"):
        title = panel.layout.get(f"{side}axis", {}).get("title", {}).get("text", "")
        getattr(axes, f"set_{side}label")(_wrapped(title, letters - 10))
    axes.spines[["top", "right"]].set_visible(False)
    for shape in panel.layout.get("shapes", ()):
        if shape["type"] == "rect" and shape["x0"] is not None and shape["x1"] is not None and shape["yref"] == "paper":
            axes.axvspan(
                shape["x0"], shape["x1"], color=colour(shape["fillcolor"]), alpha=shape["opacity"], linewidth=0
            )
    if "heatmap" in kinds:
        _heatmap(axes, panel.data[0])
    elif panel.layout.get("yaxis", {}).get("type") == "category":
        said = _rows(axes, panel, letters // 3)
    elif "bar" in kinds:
        _columns(axes, panel)
    else:
        said = _lines(axes, panel)
    for side in ("x", "y"):
        span = panel.layout.get(f"{side}axis", {}).get("range")
        if span and "heatmap" not in kinds:
            getattr(axes, f"set_{side}lim")(span)
    return said


def begin_titles_at_the_left(figure: Any, size: float) -> None:
    """Above the names of the rows and not after them: a long title has the whole width of its panel."""
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        names = axes.yaxis.get_tightbbox(renderer)
        title = axes.get_title(loc="left")
        if names is not None and title:
            axes.set_title(title, loc="left", fontsize=size, x=(names.x0 - axes.bbox.x0) / axes.bbox.width)


def label_lines(figure: Any, size: float, letters: int) -> None:
    """Names at the right ends of lines, in the lines' colours, moved apart where they would lie on each other."""
    for axes in figure.axes:
        at = axes.transData.transform
        places = sorted((float(at((x, y))[1]), x, y, name, shade) for x, y, name, shade in getattr(axes, ENDS, []))
        names = [_wrapped(name, letters) for *_, name, _ in places]
        talls = [size * 1.2 * figure.dpi / 72 * len(name.splitlines()) for name in names]
        heights = _apart([place[0] for place in places], talls)
        for height, name, (place, x, y, _, shade) in zip(heights, names, places, strict=True):
            axes.annotate(
                name,
                (x, y),
                xytext=(7, (height - place) * 72 / figure.dpi),
                textcoords="offset points",
                va="center",
                fontsize=size,
                linespacing=1.0,
                color=shade,
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": shade,
                    "linewidth": 0.4,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "relpos": (0, 0.5),  # it ends at the name's beginning, and crosses no letter
                },
            )


def _apart(middles: Sequence[float], talls: Sequence[float]) -> list[float]:
    """Rising middles of boxes, moved as little as needed so that no two boxes lie on each other.

    >>> _apart([0.0, 1.0, 9.0], [4.0, 4.0, 4.0])
    [-1.5, 2.5, 9.0]
    """
    groups: list[list[tuple[float, float]]] = []
    for box in zip(middles, talls, strict=True):
        own = [box]
        while groups and _stacked(groups[-1])[-1] + groups[-1][-1][1] / 2 > _stacked(own)[0] - own[0][1] / 2:
            own = groups.pop() + own
        groups.append(own)
    return [place for own in groups for place in _stacked(own)]


def _stacked(boxes: Sequence[tuple[float, float]]) -> list[float]:
    """Boxes on top of each other, around the mean of their middles."""
    low = sum(middle for middle, _ in boxes) / len(boxes) - sum(tall for _, tall in boxes) / 2
    places = []
    for _, tall in boxes:
        places.append(low + tall / 2)
        low += tall
    return places


def _wrapped(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(_text(text), max(12, letters)))


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
    scale: Any = "cividis"
    if trace["colorscale"] == DIVERGING:
        from matplotlib.colors import LinearSegmentedColormap

        scale = LinearSegmentedColormap.from_list("diverging", [(at, colour(name)) for at, name in DIVERGING])
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap=scale, vmin=trace["zmin"], vmax=trace["zmax"])
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05)
    raised = (re.sub(r"^10<sup>(.*)</sup>$", r"$10^{\1}$", text) for text in trace["colorbar"]["ticktext"])
    bar.set_ticks(trace["colorbar"]["tickvals"], labels=list(raised))
    for side in ("x", "y"):
        if side in trace:  # names instead of numbers; of many, every few
            every = max(1, len(trace[side]) // 10)
            at = range(0, len(trace[side]), every)
            getattr(axes, f"set_{side}ticks")(at, [_text(trace[side][i]) for i in at])


def _rows(axes: Any, panel: Panel, letters: int) -> set[str]:
    """Categories from top to bottom; series of dots one under the other, bars stacked. A category names its own dot."""
    names = panel.layout["yaxis"].get("categoryarray")
    if names is None:
        names = list(dict.fromkeys(y for trace in panel.data for y in trace["y"]))[::-1]
    place = {name: i for i, name in enumerate(names)}
    grouped = panel.layout.get("scattermode") == "group"
    lines = list(dict.fromkeys(trace.get("offsetgroup", number) for number, trace in enumerate(panel.data)))
    step = 0.75 / max(1, len(lines)) if grouped else 0.0
    left = np.zeros(len(names))
    said = {_text(name) for name in names}
    for index, trace in enumerate(panel.data):
        at = np.array([place[y] for y in trace["y"]], float)
        moved = at + (lines.index(trace.get("offsetgroup", index)) - (len(lines) - 1) / 2) * step
        values, name = _numbers(trace["x"]), _text(trace.get("meta") or trace["name"])
        if "text" in trace.get("mode", ""):
            _name_marks(axes, values, moved, trace)
        if trace.get("mode") == "text":
            said.add(_text(trace["offsetgroup"]))
            continue
        shade = colour(trace["marker"]["color"])
        if trace["type"] == "bar":
            hatch = "////" if trace["marker"].get("pattern", {}).get("shape") else None
            start = left[at.astype(int)]
            axes.barh(at, values, 0.6, start, color=shade, hatch=hatch, edgecolor="white", linewidth=0, label=name)
            left[at.astype(int)] += np.nan_to_num(values)
            continue
        symbol = str(trace["marker"].get("symbol", "circle"))
        hollow = symbol.endswith("-open")
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
    axes.set_yticks(range(len(names)), [_wrapped(name, letters) for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.axvline(0, color=colour("@axis"), linewidth=0.6, zorder=0)
    return said


def _name_marks(axes: Any, values: np.ndarray, at: np.ndarray, trace: dict[str, Any]) -> None:
    """Names beside marks, or above them."""
    sides = trace["textposition"]
    sides = [sides] * len(values) if isinstance(sides, str) else sides
    for x, y, text, side in zip(values, at, trace["text"], sides, strict=True):
        if text.strip():
            above, left = "top" in side, "left" in side
            axes.annotate(
                _text(text.strip()),
                (x, y),
                xytext=(0, 4) if above else (-4 if left else 4, 0),
                textcoords="offset points",
                ha="right" if left else "center" if above else "left",
                va="bottom" if above else "center",
                color=colour(trace["textfont"]["color"]),
                fontsize="smaller",
            )


def _columns(axes: Any, panel: Panel) -> None:
    names = list(dict.fromkeys(x for trace in panel.data for x in trace["x"]))
    width = 0.8 / max(1, len(panel.data))
    for index, trace in enumerate(panel.data):
        at = np.array([names.index(x) for x in trace["x"]], float)
        moved = at + (index - (len(panel.data) - 1) / 2) * width
        shade = colour(trace["marker"]["color"])
        axes.bar(moved, _numbers(trace["y"]), width, color=shade, label=_text(trace["name"]))
    axes.set_xticks(range(len(names)), [_text(name) for name in names])


def _lines(axes: Any, panel: Panel) -> set[str]:
    """Lines and bands; a line's name is to stand at its end (`label_lines`), where it has one."""
    ends: list[tuple[Any, float, str, str]] = []
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
        if (
            "lines" in trace["mode"]
            and trace["name"]
            and not words
            and _text(trace["name"]) not in {e[2] for e in ends}
        ):
            known = [(x, y) for x, y in zip(trace["x"], _numbers(trace["y"]), strict=True) if np.isfinite(y)]
            ends += [(*known[-1], _text(trace["name"]), shade)] if len(known) > 1 else []
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
    setattr(axes, ENDS, ends)
    said = {name for _, _, name, _ in ends}
    places = panel.layout.get("yaxis", {})
    if places.get("type") == "log":
        axes.set_yscale("log")
    elif "ticktext" in places:
        axes.set_yticks(places["tickvals"], [_text(name) for name in places["ticktext"]])
    else:
        axes.axhline(0, color=colour("@axis"), linewidth=0.6, zorder=0)
    return said
