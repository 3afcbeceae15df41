"""``dualscope theory``: every identity, both sides, the error."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dualscope.theory import CheckedIdentity


def theory(
    only: Annotated[
        list[str] | None, typer.Option(help="An identity or a topic, as the table names them; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Check on this model that its context is a change of weights.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="With --model: the task of the demonstrations.")] = None,
    data: Annotated[str | None, typer.Option(help="With --model: where the task's files are.")] = None,
    shots: Annotated[int, typer.Option(min=1, help="With --model: how many demonstrations.")] = 8,
    queries: Annotated[int, typer.Option(min=1, help="With --model: how many queries.")] = 8,
    offline: Annotated[bool, typer.Option(help="With --model: nothing is fetched.")] = False,
) -> None:
    """Check the exact theory: each identity in float64 and float32. Exit code 1 if one fails.

    With --model and --task, the identity that needs a real model: the context, for each query, is a change of the MLPs'
    input weights and output biases (in float64).

    Examples: dualscope theory --only linear-attention-step; dualscope theory --model embedded --task embedded-sst2
    """
    if model is not None or task is not None:
        _on_a_model(model or "embedded", task, data, shots, queries, seed, offline, as_json)
        return
    from dualscope.theory import chosen, judge

    verdicts = [judge(one, seed) for one in chosen(tuple(only or ()))]
    if as_json:
        _print_json(verdicts, seed)
    else:
        _print_table(verdicts)
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(1)


def _on_a_model(
    name: str, task: str | None, data: str | None, shots: int, queries: int, seed: int, offline: bool, as_json: bool
) -> None:
    import json

    from dualscope.core.errors import InputError
    from dualscope.models import Model
    from dualscope.tasks import Episode, Task, make_lesson
    from dualscope.theory.real_models import TOLERANCE, context_patch

    if task is None:
        raise InputError("--model needs a task to take demonstrations from: --task embedded-sst2")
    model = Model.load(name, dtype="float64", offline=offline)
    episode = Episode.draw(Task.load(task, data=data, offline=offline), shots, seed, queries)
    found = context_patch(model, make_lesson(episode, model.tokenizer, model.max_positions))
    error, holds = found.sides.error, found.sides.error <= TOLERANCE
    if as_json:
        row = {"name": "context-patch", "model": model.name, "task": task, "layers": model.n_layers}
        row |= {"error": error, "tolerance": TOLERANCE, "holds": holds, "form": found.in_words}
        typer.echo(json.dumps(row, indent=2))
    else:
        typer.echo(f"context-patch on {model.name}, {task}, {shots} shots, {queries} queries, float64")
        typer.echo(f"  {found.in_words}")
        typer.echo(f"  logits without the context, patched, against logits with it: relative error {error:.0e}")
        typer.echo(f"  {'holds' if holds else 'DOES NOT HOLD'} (at most {TOLERANCE:.0e})")
    if not holds:
        raise typer.Exit(1)


def _print_json(verdicts: "list[CheckedIdentity]", seed: int) -> None:
    import json
    from math import isfinite

    def number(value: float) -> float | None:
        return value if isfinite(value) else None  # NaN is not JSON

    rows = [
        {
            "name": verdict.identity.name,
            "topic": verdict.identity.topic,
            "kind": verdict.identity.kind,
            "statement": verdict.identity.statement,
            "reference": verdict.identity.reference,
            "seed": seed,
            "float64": {"error": number(verdict.error), "tolerance": verdict.identity.tolerance},
            "float32": {"error": number(verdict.error32), "tolerance": verdict.identity.tolerance32},
            "passed": verdict.passed,
        }
        for verdict in verdicts
    ]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _print_table(verdicts: "list[CheckedIdentity]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    narrow = console.width < 150  # the statements then go; names and numbers stay whole
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", no_wrap=True, style="bold")
    table.add_column("identity", no_wrap=True)
    if not narrow:
        table.add_column("statement")
    for name in ("float64", "≤", "float32", "≤"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    shown = ""
    for verdict in verdicts:
        one = verdict.identity
        topic, shown = ("" if one.topic == shown else one.topic), one.topic
        numbers = (verdict.error, one.tolerance, verdict.error32, one.tolerance32)
        table.add_row(
            Text(topic),
            Text(one.name),
            *([] if narrow else [Text(one.statement)]),
            *(f"{value:.0e}" if value else "0" for value in numbers),
            Text("pass", style="green") if verdict.passed else Text("FAIL", style="bold red"),
        )
    console.print(table)
    failed = [verdict.identity.name for verdict in verdicts if not verdict.passed]
    if failed:
        console.print(Text(f"{len(failed)} of {len(verdicts)} failed: {', '.join(failed)}", style="bold red"))
    else:
        console.print(f"all {len(verdicts)} hold")
