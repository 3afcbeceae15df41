"""dualscope convert: pickle-only checkpoints to safetensors."""

from pathlib import Path

import typer

from dualscope.commands.offline import OFFLINE


def convert(
    name: str = typer.Argument(..., metavar="NAME", help="A folder, or a name on the hub (name@revision)."),
    out: Path = typer.Argument(..., metavar="OUT", help="A new folder."),
    offline: bool = OFFLINE,
) -> None:
    """Turn a checkpoint that has only pickled weights into safetensors, without running what is in it."""
    from dualscope.models.files.convert import convert as convert_model

    written = convert_model(name, out, offline)
    typer.echo(f"wrote {', '.join(path.name for path in written)} to {out}; use it with --model {out}")
