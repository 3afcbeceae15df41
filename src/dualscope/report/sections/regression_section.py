"""In-context regression with small transformers: the shallow claim's home."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dualscope.core.rows import ExperimentRow
from dualscope.report.charts.chart import Chart, Item, Panel, Section, plain, short, whiskers
from dualscope.report.charts.chart_makers import heat_map
from dualscope.report.charts.curves import Look, line_trace
from dualscope.report.charts.dots import marks
from dualscope.report.charts.palette import SPARE
from dualscope.report.report_data import Data
from dualscope.report.reported_run import Document, ReportedRun
from dualscope.report.table import Badge, Entry, Number, Table

SHADES = ("@blue", "@vermilion", "@green", *SPARE, "@grey")
DASHES = ("solid", "dash", "dot")
READS = (
    "The claim is borne out where the trained transformer's line or bar lies on that of the algorithm "
    "it is said to compute."
)


READS_TRAINING = "Lower is learned more."
READS_HEAT_MAP = "Each row is a layer, each column an iterate; the brightest cell of a row is the layer's match."
STARS = "A star is the step at which in-context learning appears in a seed, at the height of the mean over seeds."
COUNTED = 5  # a longer axis has whole numbers by itself
FLOOR = 1e-5  # of the upper quarter's least value, below which a logarithmic axis does not go


def section(data: Data) -> Section | None:
    runs = [source for source in data.sources if source.has_regression]
    if not runs:
        return None
    about = (
        "Small transformers trained on regression problems in their context: can, and do, attention layers "
        "compute steps of gradient descent? This is the shallow claim, and says nothing about pretrained "
        "language models."
    )
    title, names = "In-context regression", _names(runs)
    if len(runs) == 1:
        items = tuple(_items(runs[0], 0, names[0], f"{names[0]}: "))
        return Section("regression", title, items, " ".join(filter(None, (about, _claim(runs[0])))))
    parts = tuple(
        Section(f"regression-{number}", name, tuple(_items(source, number, name)), _claim(source))
        for number, (name, source) in enumerate(zip(names, runs, strict=True))
    )
    return Section("regression", title, (_overview(runs, names),), about, parts)


def _names(runs: list[ReportedRun]) -> list[str]:
    """The folders' own; of results that come with the package, where that tells them apart, experiment and size."""
    names = []
    for source in runs:
        experiment, size = source.regression_settings.get("experiment"), source.provenance.get("size")
        names.append(f"{experiment}, {size}" if experiment and size else source.name)
    return names if len({*names}) == len(names) else [source.name for source in runs]


def _claim(source: ReportedRun) -> str:
    """The paper's, in a sentence; runs of earlier versions do not have it."""
    claim = source.provenance.get("claim", "")
    return f"{claim[:1].upper()}{claim[1:]}." if claim else ""


def _items(source: ReportedRun, number: int, name: str, head: str = "") -> Iterable[Item]:
    """The checks, whose table is downloaded under its title, and the charts; theirs begin with ``head``."""
    yield from _checks(source, name)
    yield from _charts(source, number, head)


def _overview(runs: list[ReportedRun], names: list[str]) -> Table:
    rows: list[list[Entry]] = []
    for name, source in zip(names, runs, strict=True):
        told = source.provenance
        checks = [check["holds"] for check in told.get("checks", [])]
        held = "quick: not checked" if told.get("quick") else f"{sum(checks)} of {len(checks)}"
        seeds = source.regression_settings.get("seeds", [])
        seconds = told.get("seconds")
        minutes = Number(None if seconds is None else seconds / 60, digits=1)
        rows.append([name, held if checks else "–", str(len(seeds)), minutes])
    columns = ["experiment", "checks that hold", "seeds", "minutes"]
    return Table.build(columns, rows, task=None, title="Every experiment and its checks")


def _checks(source: ReportedRun, name: str) -> Iterable[Item]:
    checks: list[Document] = source.provenance.get("checks", [])
    if checks:
        quick = source.provenance.get("quick", False)
        rows: list[list[Entry]] = [[_badge(c["holds"], quick), c["claim"], c["found"]] for c in checks]
        yield Table.build(
            ["", "claim", "found"], rows, task=None, title=f"{name}: what the theory says of these numbers"
        )


def _badge(holds: bool, quick: bool) -> Badge:
    if quick:  # a few steps and seeds bear nothing out, and refute nothing
        return Badge("quick: not checked", "none")
    return Badge("holds", "yes") if holds else Badge("fails", "no")


def _charts(source: ReportedRun, number: int, head: str) -> Iterable[Chart]:
    """The figures that the experiment asks for, in its order, then what no figure speaks of."""
    figures: list[Document] = list(source.provenance.get("figures", []))
    by_metric: dict[str, list[ExperimentRow]] = {}
    for row in source.regression:
        by_metric.setdefault(row["metric"], []).append(row)
    spoken = {figure.get(key) for figure in figures for key in ("metric", "marks")}
    figures += [{"metric": metric, "title": metric} for metric in by_metric if metric not in spoken]
    for i, figure in enumerate(figures):
        rows = by_metric.get(figure["metric"])
        if rows:
            stars = by_metric.get(figure.get("marks", ""), [])
            title = f"{head}{figure['title']}"
            yield _chart(title, f"regression-{number}-{i}", figure, _summaries(rows), stars)


def _summaries(rows: list[ExperimentRow]) -> list[ExperimentRow]:
    """The rows over seeds; where there are none (one seed), the seed's own."""
    return [row for row in rows if row["seed"] is None] or rows


def _chart(title: str, name: str, figure: Document, rows: list[ExperimentRow], appears: list[ExperimentRow]) -> Chart:
    metric = figure["metric"]
    names = dict.fromkeys(row["series"] for row in rows)
    looks = {
        series: (SHADES[i % len(SHADES)], DASHES[i // len(SHADES) % len(DASHES)]) for i, series in enumerate(names)
    }
    heat = figure.get("kind") == "heat map"
    panels = []
    for panel in dict.fromkeys(row["panel"] for row in rows):
        own = [row for row in rows if row["panel"] == panel]
        stars = [mark for mark in appears if mark["panel"] == panel]
        panels.append(_heat_map(own, panel or "") if heat else _panel(own, stars, panel or "", figure, looks))
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
    about = figure.get("about") or ""
    usual = READS_HEAT_MAP if heat else READS_TRAINING if rows[0]["x_name"] == "step" else READS
    reads = figure.get("reads") or usual
    return Chart(
        name,
        title,
        f"{metric} in the experiment `{rows[0]['experiment']}`, mean over seeds with 95 % intervals. {about}".strip(),
        f"{reads} {STARS}" if appears else reads,
        tuple(panels),
        Table.build(["panel", "series", "x is", "x", metric], entries, task=None),
    )


def _heat_map(rows: list[ExperimentRow], title: str) -> Panel:
    series = list(dict.fromkeys(row["series"] for row in rows))
    places = sorted({row["x"] for row in rows if row["x"] is not None})
    value = {(row["series"], row["x"]): short(row["value"]) for row in rows}
    grid = [[value.get((name, x)) for x in places] for name in series]
    return heat_map(grid, series, [f"{x:g}" for x in places], "", rows[0]["x_name"] or "", title)


def _panel(
    rows: list[ExperimentRow],
    stars: list[ExperimentRow],
    title: str,
    figure: Document,
    looks: Mapping[str, tuple[str, str]],
) -> Panel:
    series = list(dict.fromkeys(row["series"] for row in rows))
    along = any(row["x"] is not None for row in rows)
    data: list[dict[str, Any]] = []
    for name in series:
        own = sorted((r for r in rows if r["series"] == name), key=lambda r: r["x"] if r["x"] is not None else 0.0)
        data.append(_line(name, own, looks[name]) if along else _points(name, own, looks[name][0]))
    if stars:
        data.append(_stars(rows, stars))
    x_name = next((row["x_name"] for row in rows if row["x_name"]), "")
    if along:
        layout: dict[str, Any] = {"xaxis": {"title": {"text": plain(x_name)}}, "yaxis": {"zeroline": True}}
        if figure.get("log_x"):
            layout["xaxis"]["type"] = "log"
        elif _countable([row["x"] for row in rows if row["x"] is not None]):
            layout["xaxis"]["dtick"] = 1
        if figure.get("log_y"):
            layout["yaxis"] = _log_axis([row["value"] for row in rows])
        if figure.get("span"):
            layout["yaxis"]["range"] = list(figure["span"])
        return Panel(data, layout, title, 300)
    layout = {
        "xaxis": {"title": {"text": plain(figure["metric"])}},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    return Panel(data, layout, title, 90 + 30 * len(series))


def _countable(places: list[float]) -> bool:
    """Whether an axis is of a few whole numbers, between which there is nothing: layers, examples."""
    return max(places) - min(places) <= COUNTED and all(place == int(place) for place in places)


def _log_axis(values: list[float]) -> dict[str, Any]:
    """As far down as numbers mean something: what is exact but for rounding leaves the axis at its foot.

    One that errs a thousandfold at a single place does not push others off it.
    """
    positive = sorted(value for value in values if value > 0) or [1.0]
    usual = positive[3 * len(positive) // 4]
    least = next(value for value in positive if value >= FLOOR * usual)
    low, high = math.log10(least) - 0.1, math.log10(positive[-1]) + 0.1
    axis: dict[str, Any] = {"type": "log", "range": [low, high], "dtick": 1, "exponentformat": "power"}
    if high - low <= 2:  # few powers of ten: 2 and 5 times them too
        powers = range(math.floor(low), math.ceil(high) + 1)
        ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        axis |= {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return axis


def _line(name: str, own: list[ExperimentRow], look: tuple[str, str]) -> dict[str, Any]:
    reaches = [(row["value"], row["low"], row["high"]) for row in own]
    trace = line_trace(name, [short(row["x"]) for row in own], reaches, Look(look[0], dash=look[1], size=5))
    return trace if len(own) <= 30 else {**trace, "mode": "lines"}


def _points(name: str, own: list[ExperimentRow], shade: str) -> dict[str, Any]:
    values = [short(row["value"]) for row in own]
    bars = whiskers(values, [row["low"] for row in own], [row["high"] for row in own])
    return {**marks(name, values, [plain(name)] * len(own), "circle", shade), "error_x": {**bars, "color": shade}}


def _stars(rows: list[ExperimentRow], found: list[ExperimentRow]) -> dict[str, Any]:
    """Where in-context learning appears, seed by seed, on the mean curve of its series."""
    height = {(row["series"], row["x"]): row["value"] for row in rows}
    there = [mark for mark in found if mark["seed"] is not None and (mark["series"], mark["value"]) in height]
    heights = [short(height[mark["series"], mark["value"]]) for mark in there]
    return marks(found[0]["metric"], [short(mark["value"]) for mark in there], heights, "star", "@ink", 10, 0)
