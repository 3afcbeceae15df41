"""dualscope convert: pickle-only checkpoints to safetensors."""

import typer

from dualscope.commands.offline import OFFLINE


def convert(
    name: str = typer.Argument(..., metavar="NAME", help="A folder, or a name on the hub (name@revision)."),
    out: str = typer.Argument(..., metavar="OUT", help="A new folder."),
    offline: bool = OFFLINE,
) -> None:
    """Turn a checkpoint that has only pickled weights into safetensors, without running what is in it."""
    from dualscope.core.folder import local_path
    from dualscope.models.files.convert import convert as convert_model

    written = convert_model(name, local_path("OUT", out), offline)
    typer.echo(f"wrote {', '.join(path.name for path in written)} to {out}; use it with --model {out}")
