"""``dualscope report``: one page about one or more runs."""

from pathlib import Path

import typer


def report(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN...", help="Run folders (or fsspec URLs); several stand side by side."
    ),
    out: Path | None = typer.Option(
        None,
        help="The page (if not given: report.html in the run folder; in the current one for several or remote runs).",
    ),
    figures: Path | None = typer.Option(
        None, metavar="DIR", help="Also write figures for papers there, as PDF and SVG (extra: plots)."
    ),
) -> None:
    """Write a self-contained HTML page about one or more runs."""
    from dualscope.report import write_figures, write_report

    alone = len(runs) == 1 and "://" not in runs[0]
    target = out or (Path(runs[0]) / "report.html" if alone else Path("report.html"))
    typer.echo(f"report:  {write_report(runs, target)}")
    if figures is not None:
        for path in write_figures(runs, figures):
            typer.echo(f"figure:  {path}")
