"""``dualscope report``: one page about one or more runs."""

from pathlib import Path
from typing import Literal

import typer


def report(
    runs: list[str] = typer.Argument(
        None, metavar="RUN...", help="Run folders (or fsspec URLs); several stand side by side."
    ),
    out: Path | None = typer.Option(
        None,
        help="The page (if not given: report.html in the run folder; in the current one for several or remote runs).",
    ),
    figures: Path | None = typer.Option(
        None, metavar="DIR", help="Also write figures for papers there, as PDF and SVG (extra: plots)."
    ),
    latex: Path | None = typer.Option(
        None, metavar="FILE.tex", help="Also write the answers as a LaTeX table (booktabs), with intervals."
    ),
    shipped: Literal["regression"] | None = typer.Option(
        None, help="Also the results that come with the package: the full runs of the regression experiments."
    ),
) -> None:
    """Write a self-contained HTML page about one or more runs."""
    from dualscope.report import write_figures, write_report

    places = list(runs or [])
    if shipped:
        from dualscope.regression.shipped import shipped_runs

        places += [str(place) for place in shipped_runs().values()]
    alone = len(places) == 1 and "://" not in places[0] and not shipped
    target = out or (Path(places[0]) / "report.html" if alone else Path("report.html"))
    typer.echo(f"report:  {write_report(places, target)}")
    if latex is not None:
        from dualscope.report.latex import write_latex

        typer.echo(f"latex:   {write_latex(places, latex)}")
    if figures is not None:
        for path in write_figures(places, figures):
            typer.echo(f"figure:  {path}")
