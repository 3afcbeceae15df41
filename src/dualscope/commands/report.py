"""``dualscope report``: one page about one or more runs."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import typer


def report(
    runs: list[str] = typer.Argument(
        None, metavar="RUN...", help="Run folders (or fsspec URLs); several stand side by side."
    ),
    out: str | None = typer.Option(
        None,
        help="The page (if not given: report.html in the run folder; in the current one for several or remote runs).",
    ),
    figures: str | None = typer.Option(
        None, metavar="DIR", help="Also write figures for papers there, as PDF and SVG (extra: plots)."
    ),
    figure: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Write this one figure for a paper in place of the page: a name from `list figures` (extra: plots).",
    ),
    width: str = typer.Option("3.3in", help="How wide the figure is in the paper: 3.3in, 84mm, 240pt."),
    format_: Literal["pdf", "svg", "png"] = typer.Option("pdf", "--format", help="Of the figure: pdf, svg or png."),
    latex: str | None = typer.Option(
        None, metavar="FILE.tex", help="Also write the answers as a LaTeX table (booktabs), with intervals."
    ),
    published: str | None = typer.Option(
        None,
        metavar="TABLE",
        help="Print a published table with these runs' figures below each line, in place of the page: rethinking-1, "
        "rethinking-2, rethinking-3, revisited-runs, revisited-untrained, ...",
    ),
    shipped: Literal["regression"] | None = typer.Option(
        None, help="Also the results that come with the package: the full runs of the regression experiments."
    ),
) -> None:
    """Write a self-contained HTML page about one or more runs, or one figure for a paper.

    dualscope report runs/mine
    dualscope report runs/mine --figure response --width 3.3in --format pdf
    dualscope report runs/revisited-published --published rethinking-2
    """
    from dualscope.core.folder import local_path
    from dualscope.report import write_figures, write_report

    page, folder, paper = (
        local_path(option, given) if given is not None else None
        for option, given in (("--out", out), ("--figures", figures), ("--latex", latex))
    )
    places = list(runs or [])
    if shipped:
        from dualscope.regression.results_folder import shipped_runs

        places += [str(place) for place in shipped_runs().values()]
    if published is not None:
        _print_published(places, published)
        return
    if figure is not None:
        from dualscope.report.charts.figures import inches, write_figure

        typer.echo(f"figure:  {write_figure(places, figure, inches(width), format_, page)}")
        return
    alone = len(places) == 1 and "://" not in places[0] and not shipped
    target = page or (Path(places[0]) / "report.html" if alone else Path("report.html"))
    typer.echo(f"report:  {write_report(places, target)}")
    if paper is not None:
        from dualscope.report.answer_table import write_latex

        typer.echo(f"latex:   {write_latex(places, paper)}")
    if folder is not None:
        for path in write_figures(places, folder):
            typer.echo(f"figure:  {path}")


def _print_published(places: list[str], name: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from dualscope.report.report_data import Data
    from dualscope.report.sections.published_section import tables
    from dualscope.report.table import Number

    for table in tables(Data(places), name):
        shown = Table(title=table.title, title_justify="left", box=None, pad_edge=False)
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if table.numeric[number] else "left", no_wrap=number > 0)
        for row in table.rows:
            shown.add_row(*(replace(one, digits=3).text if isinstance(one, Number) else str(one) for one in row))
        Console().print(shown, markup=False)


def share(
    run: str = typer.Argument(metavar="RUN", help="A run folder (or fsspec URL)."),
    out: str | None = typer.Option(
        None, metavar="FILE.html", help="The file; if not given, named after the run, in the current folder."
    ),
) -> None:
    """Bundle report, rows and provenance in one HTML file: it opens in any browser, and hands over the data.

    dualscope share runs/mine --out mine.html
    """
    from dualscope.core.folder import local_path
    from dualscope.report.page import write_shared

    name = run.rstrip("/").rpartition("/")[2] or "run"
    target = Path(f"{name}.html") if out is None else local_path("--out", out)
    written, rows = write_shared(run, target)
    typer.echo(f"shared:  {written} ({written.stat().st_size / 2**20:.1f} MB, {rows:,} rows inside)")
