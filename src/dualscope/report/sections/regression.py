"""In-context regression with small transformers: the shallow claim's home."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dualscope.report.charts.chart import Chart, Item, Panel, Section, plain, short, whiskers
from dualscope.report.charts.palette import SPARE
from dualscope.report.data import Data
from dualscope.report.source import Row, Source
from dualscope.report.table import Badge, Entry, Number, Table

SHADES = ("@blue", "@vermilion", "@green", *SPARE, "@grey")


def section(data: Data) -> Section | None:
    runs = [source for source in data.sources if source.has_regression]
    if not runs:
        return None
    items: list[Item] = []
    for number, source in enumerate(runs):
        items += _checks(source)
        metrics = dict.fromkeys(row["metric"] for row in source.regression)
        items += [_chart(source, f"regression-{number}-{i}", metric) for i, metric in enumerate(metrics)]
    about = (
        "Small transformers trained on regression problems in their context: can, and do, attention layers "
        "compute steps of "
        "gradient descent? This is the shallow claim, and says nothing about language models."
    )
    return Section("regression", "In-context regression", tuple(items), about)


def _checks(source: Source) -> Iterable[Item]:
    checks: list[Row] = source.provenance.get("checks", [])
    if checks:
        quick = source.provenance.get("quick", False)
        rows: list[list[Entry]] = [[_badge(c["holds"], quick), c["claim"], c["found"]] for c in checks]
        yield Table.build(
            ["", "claim", "found"],
            rows,
            task=None,
            title=f"{source.name}: what the theory says of these numbers",
        )


def _badge(holds: bool, quick: bool) -> Badge:
    if quick:  # a few steps and seeds bear nothing out, and refute nothing
        return Badge("quick: not checked", "none")
    return Badge("holds", "yes") if holds else Badge("fails", "no")


def _summaries(source: Source, metric: str) -> list[Row]:
    """The rows over seeds; where there are none (one seed), the seed's own."""
    own = [row for row in source.regression if row["metric"] == metric]
    over = [row for row in own if row["seed"] is None]
    return over or own


def _chart(source: Source, name: str, metric: str) -> Chart:
    rows = _summaries(source, metric)
    experiment = rows[0]["experiment"] if rows else source.name
    names = dict.fromkeys(row["series"] for row in rows)
    shades = {name: SHADES[i % len(SHADES)] for i, name in enumerate(names)}
    panels = tuple(
        _panel([row for row in rows if row["panel"] == panel], panel or "", metric, shades)
        for panel in dict.fromkeys(row["panel"] for row in rows)
    )
    entries: list[list[Entry]] = [
        [
            row["panel"] or "",
            row["series"],
            row["x_name"] or "",
            "" if row["x"] is None else f"{row['x']:g}",
            Number(row["value"], row["low"], row["high"], digits=4),
        ]
        for row in rows
    ]
    return Chart(
        name,
        f"{source.name}: {metric}",
        f"{metric} in the experiment `{experiment}`, mean over seeds with 95 % intervals.",
        "The claim is borne out where the trained transformer's line or bar lies on that of the algorithm "
        "it is said to compute.",
        panels,
        Table.build(["panel", "series", "x is", "x", metric], entries, task=None),
    )


def _panel(rows: list[Row], title: str, metric: str, shades: dict[str, str]) -> Panel:
    series = list(dict.fromkeys(row["series"] for row in rows))
    along = any(row["x"] is not None for row in rows)
    data: list[dict[str, Any]] = []
    for name in series:
        own = sorted(
            (r for r in rows if r["series"] == name), key=lambda r: r["x"] if r["x"] is not None else 0.0
        )
        values = [short(row["value"]) for row in own]
        bars = whiskers(values, [row["low"] for row in own], [row["high"] for row in own])
        shade = shades[name]
        if along:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(own) <= 30 else "lines",
                    "name": plain(name),
                    "x": [short(row["x"]) for row in own],
                    "y": values,
                    "error_y": {**bars, "color": shade, "thickness": 1},
                    "line": {"color": shade, "width": 2},
                    "marker": {"color": shade, "size": 5},
                }
            )
        else:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": plain(name),
                    "x": values,
                    "y": [plain(name)] * len(own),
                    "error_x": {**bars, "color": shade},
                    "marker": {"color": shade, "size": 9},
                }
            )
    x_name = next((row["x_name"] for row in rows if row["x_name"]), "")
    if along:
        layout: dict[str, Any] = {"xaxis": {"title": {"text": plain(x_name)}}, "yaxis": {"zeroline": True}}
        return Panel(data, layout, title, 300)
    layout = {
        "xaxis": {"title": {"text": plain(metric)}},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    return Panel(data, layout, title, 90 + 30 * len(series))
