"""``dualscope theory``: every identity, both sides, the error."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dualscope.theory import Judgement


def theory(
    only: Annotated[
        list[str] | None, typer.Option(help="An identity or a topic, as the table names them; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check the exact theory: each identity in float64 and float32. Exit code 1 if one fails."""
    from dualscope.theory import chosen, judge

    verdicts = [judge(one, seed) for one in chosen(tuple(only or ()))]
    if as_json:
        _print_json(verdicts, seed)
    else:
        _print_table(verdicts)
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(1)


def _print_json(verdicts: "list[Judgement]", seed: int) -> None:
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


def _print_table(verdicts: "list[Judgement]") -> None:
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
