"""``dualscope try``: one's own demonstrations in one line."""

import math
from collections.abc import Iterable

import typer

from dualscope.core.errors import InputError

BLOCKS = "▁▂▃▄▅▆▇█"
LEARNERS = ("gd", "lcgd", "zero-shot-offset", "dilution")


def attempt(
    demonstrations: list[str] = typer.Argument(
        metavar='"TEXT => LABEL"...', help='Demonstrations, as in "a fine film => Positive".'
    ),
    query: list[str] = typer.Option([], "--query", "-q", help="A text to be labelled. May be given several times."),
    model: str = typer.Option("embedded", "--model", "-m", help="embedded, a folder, a GGUF file, or a hub name."),
    template: str | None = typer.Option(None, help="What stands around a text, as in 'Review: {text} Sentiment:'."),
    lr: float | None = typer.Option(
        None, help="The learning rate; if not given, chosen by leaving a demonstration out."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
) -> None:
    """Show a model your own demonstrations, in its prompt and by gradient descent, and compare what that does.

    dualscope try "a fine film => Positive" "a dull plot => Negative" --query "moving and funny"
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from dualscope.results.compare import compare

    shown = [_pair(text) for text in demonstrations]
    if not query:
        raise InputError('--query: give a text to be labelled, as in --query "moving and funny"')
    words = dict.fromkeys(label for _, label in shown)
    if len(words) < 2:
        raise InputError(
            f"all demonstrations have the label '{next(iter(words), '')}', so there is nothing to tell apart; give at "
            'least one with another label, as in "a dull plot => Negative"'
        )
    found = compare(
        model,
        demonstrations=shown,
        queries=query,
        learners=LEARNERS,
        lr=lr,
        template=template,
        device=device,
        metrics=["sim_aou"],
    )
    labels = found.lesson.episode.task.labels
    layers = found.layers("sim_aou")
    likeness = {row["learner"]: row["value"] for row in found.rows if row["layer"] is None}
    console = Console(highlight=False)
    for number, text in enumerate(query):
        table = Table(
            "",
            *(Column(Text(label)) for label in labels),
            "likeness",
            "by layer",
            title=Text(text, style="bold"),
            title_justify="left",
            box=None,
        )
        for name, trace in found.traces.items():
            chances = trace.label_logprobs[number].double().softmax(-1).tolist()
            best = max(range(len(labels)), key=chances.__getitem__)
            cells = [Text(f"{p:.2f}", style="bold" if i == best else "") for i, p in enumerate(chances)]
            like = likeness.get(name, math.nan) if name != "in-context" else math.nan
            line = sparkline(layers[name]) if name in layers and name != "in-context" else ""
            table.add_row(Text(name), *cells, "" if math.isnan(like) else f"{like:.2f}", line)
        console.print(table)
    console.print(
        f"gd and lcgd at rate {found.lr:g}; likeness: sim_aou with in-context learning, mean over queries", style="dim"
    )
    console.print(
        "zero-shot-offset and dilution have nothing to learn from: a likeness below theirs says little", style="dim"
    )


def _pair(text: str) -> tuple[str, str]:
    shown, arrow, label = text.rpartition("=>")
    if not arrow or not shown.strip() or not label.strip():
        raise InputError(f"'{text}': a demonstration is a text, => and a label, as in \"a fine film => Positive\"")
    return shown.strip(), label.strip()


def sparkline(values: Iterable[float]) -> str:
    """Eight heights from 0 to 1; what is below 0 is the lowest, and what is undefined a dot.

    >>> sparkline([0.0, 0.5, 1.0, -0.2, float("nan")])
    '▁▅█▁·'
    """
    return "".join(
        "·" if math.isnan(value) else BLOCKS[min(7, max(0, round(float(value) * 7 + 0.01)))] for value in values
    )
