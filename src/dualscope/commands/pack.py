"""``dualscope pack``: a run's many files become few."""

from pathlib import Path

import typer

from dualscope.commands.shared_options import resumable
from dualscope.core.errors import InputError

FEW = 3  # reasons that are named


def pack(
    run: str = typer.Argument(..., metavar="RUN", help="A run folder, or its fsspec URL."),
    out: str | None = typer.Option(
        None,
        metavar="URL",
        help="Another place: a folder, or a URL such as s3://bucket/run. If not given, the run is packed where it is.",
    ),
) -> None:
    """Pack a run's cells into one Parquet data set, partitioned by model and task.

    A packed run is read, reported and gone on with like any other. Interrupted, the same command goes on.

    dualscope pack runs/mine
    dualscope pack runs/mine --out s3://bucket/mine
    """
    from rich.console import Console
    from rich.progress import Progress

    from dualscope.core.folder import check_not_kept
    from dualscope.studies.run_folder.packing import pack as pack_run
    from dualscope.studies.run_folder.packing import write_card
    from dualscope.studies.run_folder.storage import RunFolder

    if out is not None and not out.strip():
        raise InputError("--out: an empty name; give a folder or a URL, or leave the option out")
    source = RunFolder.open(run)
    if out is not None and "://" not in out:
        check_not_kept("--out", Path(out))
    if out is not None and "://" not in out + run:
        there, here = Path(out).resolve(), Path(run).resolve()
        if there != here and (there.is_relative_to(here) or here.is_relative_to(there)):
            raise InputError(f"--out {out}: lies in the run folder, or holds it; give a place beside it")
    target = source if out is None else RunFolder.create(out)
    console = Console(stderr=True)
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    with resumable(str(target.folder)), bars:
        bar = bars.add_task("packing", total=None)
        result = pack_run(source, target, lambda done, total: bars.update(bar, completed=done, total=total))
    before = f"; {result.there} were packed before" if result.there else ""
    typer.echo(f"{result.cells} cells packed into {result.parts} part{'s' * (result.parts != 1)}{before}")
    for cell, why in list(result.left.items())[:FEW]:
        typer.echo(f"note: cell {cell} stays as it is ({why}); `dualscope run` computes what is damaged again")
    if len(result.left) > FEW:
        typer.echo(f"note: and {len(result.left) - FEW} more")
    card = write_card(target)
    typer.echo(f"run:    {target.folder}")
    typer.echo(f"card:   {target.folder.path(card)}")
