"""``dualscope regression``: in-context regression experiments."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dualscope.regression import Experiment, Results


class Name(StrEnum):
    """Spelt out here so that --help needs no torch; a test compares it with the registry."""

    vonoswald = "vonoswald"
    ahn = "ahn"
    cheng = "cheng"
    mesa = "mesa"
    akyurek = "akyurek"
    variants = "variants"
    momentum = "momentum"
    garg = "garg"
    newton = "newton"
    softmax_layer = "softmax-layer"


def regression(
    experiment: Annotated[Name, typer.Argument(help="Which experiment.")],
    seeds: Annotated[str | None, typer.Option(help="How many seeds (3 means 0, 1, 2), or which: 2,3,4.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps (cheng: rates tried).")] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Run folder (runs/regression-EXPERIMENT if not given, with -quick or -full behind it)."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds, not minutes: to look, not to believe.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The papers' sizes: minutes on a large GPU, hours on a CPU.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu (if not given), cuda, ...")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="End each training after so many; its rate falls with the clock.")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Compile GPT-2 blocks: slower to start, then faster (on a GPU, at --full)."),
    ] = False,
) -> None:
    """In-context regression with small transformers: do trained layers compute gradient descent?

    vonoswald: a trained linear layer against GD and GD++. ahn: the learned preconditioner. cheng:
    functional GD, which attention for which data. mesa: autoregressive dynamics. akyurek: closed forms,
    noise and ridge. variants: regularized, augmented and negative attention. momentum: language models with
    momentum attention. garg: function classes learned in context by GPT-2 blocks. newton: layers against
    iterations of Newton and of GD. softmax-layer: one softmax layer with regularized, augmented and negative attention.

    Exit code 1 if the numbers do not bear out what the theory says of them (never checked with --quick).
    Stopped, the same command goes on from its last checkpoint.

    Examples:

      dualscope regression vonoswald --quick

      dualscope regression garg --full --device cuda --compile
    """
    import shutil
    from time import monotonic

    from dualscope.core.command_hints import called
    from dualscope.core.errors import InputError
    from dualscope.core.folder import local_path
    from dualscope.regression import EXPERIMENTS, save
    from dualscope.regression.results_folder import check_place

    if quick and full:
        raise InputError("--quick and --full: give one of them, or none")
    given: dict[str, Any] = {"seeds": seeds, "steps": steps, "device": device, "minutes": minutes}
    settings = {name: value for name, value in given.items() if value is not None}
    kind = EXPERIMENTS[experiment.value]
    if compiled:
        if not kind.compiles:
            others = ", ".join(name for name in EXPERIMENTS if EXPERIMENTS[name].compiles)
            raise InputError(
                f"--compile: {experiment.value} trains linear layers, which have nothing to compile; leave it out "
                f"(it is for {others})"
            )
        settings["compiled"] = True
    chosen = _build(kind, settings, quick, full)
    size = "-quick" if quick else "-full" if full else ""
    if out is not None and not out.strip():
        raise InputError("--out: an empty name; give a folder for the run, or leave the option out")
    folder = local_path("--out", out or f"runs/regression-{experiment.value}{size}")
    check_place(folder, experiment.value, chosen)
    began = monotonic()
    checkpoints = folder / "checkpoints"
    results = _watched(chosen, experiment.value, None if quick else checkpoints)
    place = save(results, chosen, folder, monotonic() - began, quick=quick)
    shutil.rmtree(checkpoints, ignore_errors=True)  # what they were kept for is done
    _show(results, quick)
    typer.echo(f"rows in {place}; a page about them: {called('report')} {place}")
    if not quick and not all(check.holds for check in results.checks):
        raise typer.Exit(1)


def _build(kind: "type[Experiment]", settings: dict[str, Any], quick: bool, full: bool) -> "Experiment":
    from pydantic import ValidationError

    from dualscope.core.errors import InputError

    try:
        return kind.quick(**settings) if quick else kind.full(**settings) if full else kind(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        field = "-".join(str(part) for part in first["loc"][:1])
        raise InputError(f"--{field} {settings.get(field)}: {first['msg'].removeprefix('Value error, ')}") from None


def _watched(experiment: "Experiment", name: str, checkpoints: Path | None) -> "Results":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=experiment.work)
        return experiment.run(lambda done: bar.advance(task, done), checkpoints)


def _show(results: "Results", quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for table in results.tables:
        shown = Table(title=table.title, title_justify="left", box=None, pad_edge=False)
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if number == 0 else "right")
        for row in table.rows:
            shown.add_row(*(Text(cell) for cell in row))
        console.print(shown)
        console.print()
    if quick:
        console.print("quick: too few steps and seeds for the numbers to mean anything")
        return
    for check in results.checks:
        mark = Text("holds ", style="green") if check.holds else Text("FAILS ", style="bold red")
        console.print(mark, Text(f"{check.claim}: {check.found}"), sep="")
