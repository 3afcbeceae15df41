"""The page's charts as PDF and SVG, for papers: the same data, drawn by matplotlib (extra: plots)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError
from dualscope.report.charts.chart import Chart
from dualscope.report.charts.drawing import draw
from dualscope.report.charts.legend import legend
from dualscope.report.data import Data

FORMATS = ("pdf", "svg")
PANEL = 3.3
"""Inches: two panels fill a page's width."""


def write_figures(runs: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Every chart of a report as PDF and SVG; returns what was written."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("--figures needs matplotlib, which is not installed: pip install 'dualscope[plots]'") from None
    from dualscope.report.sections import SECTIONS

    data, folder, written = Data(runs), Path(out), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--figures {out}: cannot be made ({error.strerror})") from None
    # Text stays text in the SVG, fonts go into the PDF, and the same data gives the same file.
    settings: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "dualscope", "font.size": 8}
    with matplotlib.rc_context(settings):
        for make in SECTIONS:
            section = make(data)
            for chart in section.charts() if section is not None else []:
                written += _write(chart, folder)
    return written


def _write(chart: Chart, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    columns = min(2, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    width = PANEL * 2
    tall = [max(1.6, panel.height / 130) for panel in chart.panels]
    heights = [max(tall[row * columns : (row + 1) * columns]) for row in range(rows)]
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes in grid.ravel()[len(chart.panels) :]:
        axes.axis("off")
    for axes, panel in zip(grid.ravel(), chart.panels, strict=False):
        draw(axes, panel)
    handles: dict[str, Any] = {}
    for axes in grid.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [key.name for key in legend(chart) if key.name in handles]
    if order:
        figure.legend(
            [handles[name] for name in order],
            order,
            loc="outside upper left",
            ncols=min(4, len(order)),
            frameon=False,
            fontsize=7,
        )
    name = re.sub(r"[^\w.-]+", "-", chart.id)
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path in paths:
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else {"Date": None})
    return paths
