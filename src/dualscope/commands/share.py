"""``dualscope share``: a run in one file that opens elsewhere."""

from pathlib import Path

import typer


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
    from dualscope.report.shared_page import write_shared

    name = run.rstrip("/").rpartition("/")[2] or "run"
    target = Path(f"{name}.html") if out is None else local_path("--out", out)
    written, rows = write_shared(run, target)
    typer.echo(f"shared:  {written} ({written.stat().st_size / 2**20:.1f} MB, {rows:,} rows inside)")
