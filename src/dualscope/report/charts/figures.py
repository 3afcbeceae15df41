"""The page's charts as figures for papers: the same data, drawn by matplotlib (extra: plots)."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

from dualscope.core.errors import InputError, suggest
from dualscope.core.folder import check_not_kept
from dualscope.report.charts.chart import Chart, legend
from dualscope.report.charts.curves import Line, curve, line_panel
from dualscope.report.charts.drawing import begin_titles_at_the_left, draw, label_lines
from dualscope.report.report_data import Data

FigureFormat = Literal["pdf", "svg", "png"]
FORMATS: tuple[FigureFormat, ...] = ("pdf", "svg")
PAGE = 6.6
"""Inches: a page's width of text."""
COLUMN = 3.3
"""Inches: a column of two. From `TWO_PANELS` on, two panels stand side by side."""
TWO_PANELS = 5.0
NARROWEST, WIDEST = 2.0, 20.0
TALLEST = 8.6
"""Inches: what a page has room for with a caption. Panels get lower where their sum is more, down to `LOWEST`."""
LOWEST = 1.0
SIZES = (8.0, 7.5, 7.0, 6.5, 6.0)
"""Points: the largest at which nothing leaves the canvas is taken."""
FIGURES = {
    "response": ("response-scale", "when the labels change: who moves as in-context learning does"),
    "shares": ("response-shares", "how much of what a context does to each layer depends on the labels"),
    "geometry": ("response-geometry", "which draws are close, layer by layer, in two learners"),
    "controls": ("controls-beside", "the likeness of the whole change beside its controls"),
    "explained": ("explained", "how much of in-context learning's answers each learner explains"),
    "accuracy": ("accuracies", "how often each learner is right"),
    "similarity": ("similarity-sim_aou", "the likeness of attention outputs, task by task"),
    "layers": ("layers-sim_aou", "the likeness of attention outputs, layer by layer"),
    "early-exit": ("early-exit", "accuracy read off every layer"),
    "partition": ("partition", "which answers in-context learning and a learner change"),
}
"""Short names of the charts that papers show, and what they show; a chart's own id is a name too."""
RESPONSES = "; responses are measured with `--intervention relabel`, or `interventions: relabel` in a study"


def write_figures(runs: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Every chart of a report as PDF and SVG; returns what was written."""
    check_not_kept("--figures", Path(out))
    with _styled("--figures"):
        data, folder, written = Data(runs), Path(out), []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--figures {out}: cannot be made ({error.strerror})") from None
        for chart in charts_of(data):
            figure = drawn(chart, PAGE)
            name = re.sub(r"[^\w.-]+", "-", chart.id)
            written += [_saved(figure, folder / f"{name}.{kind}") for kind in FORMATS]
    return written


def write_figure(
    runs: Sequence[str | Path], name: str, width: float = COLUMN, kind: FigureFormat = "pdf", out: Path | None = None
) -> Path:
    """One chart at the width that it will have in the paper; returns where it is."""
    if kind not in get_args(FigureFormat):
        raise InputError(f"--format {kind}: {suggest(kind, get_args(FigureFormat))}")
    target = out or Path(f"{name}.{kind}")
    check_not_kept("--out", target)
    with _styled("--figure", as_paths=True):
        figure = drawn(chart_named(Data(runs), name), width)
        try:
            return _saved(figure, target, kind)
        except OSError as error:
            raise InputError(f"--out {target}: cannot be written ({error.strerror})") from None


def figure_of(data: Data, name: str, width: float = PAGE) -> Any:
    """The same figure for a notebook."""
    with _styled("plot()"):
        return drawn(chart_named(data, name), width, shown=True)


def layers_figure(
    panels: Mapping[str, Mapping[str, Line]], title: str, colours: Mapping[str, str], width: float
) -> Any:
    """For a notebook: lines over the layers, a panel for every title, drawn as the page draws them."""
    made = [
        line_panel([curve(name, line, colours[name], "solid", True) for name, line in lines.items()], "", head, None)
        for head, lines in panels.items()
    ]
    with _styled("plot()"):
        return drawn(Chart("layers", title, "", "", tuple(made)), width, shown=True)


def is_figure(name: str) -> bool:
    return name in FIGURES or name in {chart for chart, _ in FIGURES.values()}


def charts_of(data: Data) -> Iterator[Chart]:
    """Every chart of a page, in its order."""
    from dualscope.report.sections import sections_of

    for section in sections_of(data):
        yield from section.charts()


def chart_named(data: Data, name: str) -> Chart:
    """The chart of a short name or an id; an unknown name is an error that lists those of this run."""
    wanted = FIGURES[name][0] if name in FIGURES else name
    found: dict[str, Chart] = {}
    for chart in charts_of(data):
        if chart.id == wanted:
            return chart
        found.setdefault(chart.id, chart)
    short = {own: brief for brief, (own, _) in FIGURES.items()}
    there = [short.get(own, own) for own in found]
    if name not in FIGURES:
        raise InputError(f"figure '{name}': there is no such figure: {suggest(name, there)}")
    needs = RESPONSES if wanted.startswith("response-") else ""
    brief = ", ".join(brief for brief in FIGURES if brief in there) or "none"
    raise InputError(
        f"figure '{name}': this run does not have what it shows ({FIGURES[name][1]}){needs}. It has: {brief}."
    )


def inches(text: str) -> float:
    """A width with its unit.

    >>> inches("3.3in"), round(inches("84mm"), 2), inches("240pt") < 3.4
    (3.3, 3.31, True)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)?\s*", text)
    width = float(found[1]) / {"in": 1.0, "cm": 2.54, "mm": 25.4, "pt": 72.27}[found[2] or "in"] if found else 0.0
    if not NARROWEST <= width <= WIDEST:
        raise InputError(
            f"--width {text}: a width from {NARROWEST:g} to {WIDEST:g} inches is needed, as in 3.3in, 84mm or 240pt"
        )
    return width


def drawn(chart: Chart, width: float, shown: bool = False) -> Any:
    """The chart as a figure of this width, in the largest print at which nothing leaves the canvas."""
    figure = None
    for size in SIZES:
        figure = _draw(chart, width, size, shown)
        if _fits(figure):
            break
    return figure


@contextmanager
def _styled(asked: str, as_paths: bool = False) -> Iterator[None]:
    """The same data gives the same file; fonts go into the PDF, and as outlines into a figure in SVG."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(f"{asked} needs matplotlib, which is not installed: pip install 'dualscope[plots]'") from None
    text = "path" if as_paths else "none"
    settings: Any = {"svg.fonttype": text, "pdf.fonttype": 42, "svg.hashsalt": "dualscope"}
    with matplotlib.rc_context(settings):
        yield


def _draw(chart: Chart, width: float, size: float, shown: bool) -> Any:
    import matplotlib

    with matplotlib.rc_context({"font.size": size, "xtick.labelsize": size - 1, "ytick.labelsize": size - 1}):
        columns = min(2 if width >= TWO_PANELS else 1, len(chart.panels))
        rows = math.ceil(len(chart.panels) / columns)
        tall = [max(1.5, panel.height / 130) for panel in chart.panels]
        heights = [max(tall[row * columns : (row + 1) * columns]) for row in range(rows)]
        heights = [max(LOWEST, height * min(1.0, TALLEST / sum(heights))) for height in heights]
        letters = int(width / columns * 72 / (0.52 * size))
        keys = [key.name for key in legend(chart)]
        figure = _new_figure(width, sum(heights) + 0.2, shown)
        grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes in grid.ravel()[len(chart.panels) :]:
            axes.axis("off")
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid.ravel(), chart.panels, strict=False):
            said = draw(axes, panel, letters, size)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                if label not in said:
                    handles.setdefault(label, handle)
        order = [name for name in keys if name in handles]
        if order:
            _add_legend(figure, {textwrap.fill(name, letters): handles[name] for name in order}, size)
        figure.draw_without_rendering()  # the layout decides where titles begin, and where lines end
        begin_titles_at_the_left(figure, size)
        label_lines(figure, size - 1.5, max(14, letters // 3))
    return figure


def _add_legend(figure: Any, handles: dict[str, Any], size: float) -> None:
    """Below the panels, in as many columns as the canvas has room for."""
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    for columns in range(min(4, len(handles)), 0, -1):
        made = figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False,
            fontsize=size - 1, columnspacing=1.2, handletextpad=0.5,
        )  # fmt: skip
        if columns == 1 or made.get_window_extent(renderer).width <= figure.bbox.width - 4:
            return
        made.remove()


def _fits(figure: Any) -> bool:
    """Whether everything that is drawn lies on the canvas, and no text of one panel on another's axes."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    box, canvas = figure.get_tightbbox(renderer), figure.bbox_inches
    slack = 0.01
    inside = box.x0 >= -slack and box.y0 >= -slack and box.x1 <= canvas.x1 + slack and box.y1 <= canvas.y1 + slack
    return bool(inside and all(axes.bbox.width > 0.25 * figure.bbox.width / 2 for axes in figure.axes[:1]))


def _saved(figure: Any, path: Path, kind: str | None = None) -> Path:
    kind = kind or path.suffix.removeprefix(".")
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format=kind, metadata=metadata, dpi=300)
    return path


def _new_figure(width: float, height: float, shown: bool = True) -> Any:
    """A figure that a notebook shows as a picture, also where pyplot was never imported."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot() needs matplotlib: pip install 'dualscope[plots]'") from None

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            picture = BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    figure = (Shown if shown else Figure)(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
