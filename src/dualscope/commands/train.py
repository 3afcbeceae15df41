"""``dualscope train``: a small model that learns in context, from generated text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from dualscope.commands.shared_options import resumable
from dualscope.core.command_hints import called
from dualscope.core.errors import InputError
from dualscope.core.folder import local_path

if TYPE_CHECKING:
    from dualscope.training.training_loop import Progress

MOST_WORKERS = 256


def train(
    out: str = typer.Option(
        ..., metavar="PATH", help="Folder for the model; a training that was stopped there goes on."
    ),
    steps: int = typer.Option(9000, help="Training steps."),
    minutes: float | None = typer.Option(None, help="End after this time, the learning rate falling with it."),
    short_steps: int | None = typer.Option(
        None, min=0, help="The first steps, on twice as many sequences of half the length [4/9 of the steps]."
    ),
    batch: int | None = typer.Option(None, help="Sequences a step [64 on CUDA, 4 on a CPU]."),
    length: int | None = typer.Option(None, help="Tokens a sequence, and the model's positions [1024; 256 on a CPU]."),
    layers: int | None = typer.Option(None, help="Layers [6; 2 on a CPU]."),
    width: int | None = typer.Option(None, help="Width [192; 64 on a CPU]."),
    heads: int | None = typer.Option(None, help="Heads [6; 2 on a CPU]."),
    lr: float = typer.Option(1e-3, help="Highest learning rate."),
    seed: int = typer.Option(0, min=0, max=2**32 - 1, help="Seed of the weights and of the text."),
    attention: str | None = typer.Option(None, help="Attention kind, as 'momentum' or '{name: momentum, eta: 0.5}'."),
    balance: str | None = typer.Option(
        None, help="A factor a layer, as 32,16,16,32,1,1: the same model, its layers less sensitive to GD."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:1, ..."),
    workers: int | None = typer.Option(
        None, min=0, max=MOST_WORKERS, help="Processes that write text ahead [8 on CUDA, 0 on a CPU]."
    ),
    compiled: bool = typer.Option(False, "--compile", help="Compile the model: slower to start, then faster."),
    save_every: int = typer.Option(500, min=0, help="Steps between checkpoints; 0: only on Ctrl-C."),
    keep_every: int = typer.Option(
        0, min=0, help="Keep the model after every so many steps, for `run --model 'PATH/checkpoint-*'`."
    ),
    evaluate_every: int = typer.Option(1000, min=0, help="Steps between evaluations; 0: only at the end."),
) -> None:
    """Train the embedded kind of model: it learns in context, from text that we generate.

    With a GPU the sizes are those of the embedded model; on a CPU they are test-sized, unless you give them.
    """
    if not out.strip():
        raise InputError("--out is empty; give a folder for the model")
    folder = local_path("--out", out)
    if (folder / "study.yaml").exists() or (folder / "cells").exists():
        raise InputError(f"--out {out}: is a run folder; give the model a folder of its own")
    if any((above / "study.yaml").exists() and (above / "cells").is_dir() for above in folder.resolve().parents):
        raise InputError(f"--out {out}: lies in a run folder; give the model a folder of its own")
    kind = _attention(attention)
    from dualscope.models.loading.device_and_precision import resolve
    from dualscope.training.settings import Settings
    from dualscope.training.training_loop import train as run

    place = resolve(device)
    small: dict[str, Any] = (
        {"batch": 4, "length": 256, "layers": 2, "width": 64, "heads": 2} if place.type == "cpu" else {}
    )
    given = {"batch": batch, "length": length, "layers": layers, "width": width, "heads": heads}
    sizes: dict[str, Any] = small | {name: value for name, value in given.items() if value is not None}
    settings = Settings(
        steps=steps,
        minutes=minutes,
        lr=lr,
        seed=seed,
        attention=kind,
        warmup=min(300, max(1, steps // 10)),
        short_steps=steps * 4 // 9 if short_steps is None else short_steps,
        balance=_factors(balance),
        **sizes,
    )
    with _watched() as watch, resumable(folder, (folder / "checkpoint").exists):
        run(
            settings,
            folder,
            device=str(place),
            workers=workers if workers is not None else 0 if place.type == "cpu" else 8,
            compiled=compiled,
            save_every=save_every,
            evaluate_every=evaluate_every,
            keep_every=keep_every,
            sequences=16 if place.type == "cpu" else 64,
            watch=watch,
        )
    typer.echo(f"saved to {out}; try: {called('run', '--model', str(out))}")


def _factors(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--balance {text}: expected a factor a layer, for example 32,16,16,32,1,1") from None


def _attention(text: str | None) -> dict[str, Any] | None:
    """A name, or a YAML mapping with a name and options."""
    if text is None:
        return None
    from dualscope.core.config_file import parsed_value
    from dualscope.models.attention_kinds import make_kind

    read = parsed_value(text, "--attention")
    return make_kind({"name": read} if isinstance(read, str) else read).described()


@contextmanager
def _watched() -> Iterator[Callable[["Progress"], None]]:
    """A progress bar while a training runs: ``with _watched() as watch``."""
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("step {task.fields[step]}"), bars.BarColumn(), bars.TextColumn("{task.description}"))
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, *times, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0, step=0)

        def watch(progress: "Progress") -> None:
            text = f"label loss {progress.loss:.3f}"
            bar.update(task, completed=progress.done, step=progress.step, description=text)
            if progress.evaluation:
                means = ", ".join(
                    f"{kind.replace('_', '-')} {curve['0']:.2f} zero-shot, {list(curve.values())[-1]:.2f} with "
                    f"{list(curve)[-1]} shots"
                    for kind, curve in progress.evaluation.items()
                    if kind != "flipped"
                )
                bar.console.print(f"step {progress.step}: {means}", highlight=False)

        yield watch
