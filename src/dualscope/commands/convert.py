"""dualscope convert: pickle-only checkpoints and GGUF files to safetensors."""

import typer

from dualscope.commands.shared_options import OFFLINE


def convert(
    name: str = typer.Argument(..., metavar="NAME", help="A folder, a GGUF file, or a name on the hub."),
    out: str = typer.Argument(..., metavar="OUT", help="A new folder."),
    offline: bool = OFFLINE,
) -> None:
    """Turn pickled weights, or a GGUF file, into safetensors, without running what is in them."""
    from dualscope.core.folder import local_path
    from dualscope.models.loading.conversion import convert as convert_model

    written = convert_model(name, local_path("OUT", out), offline)
    typer.echo(f"wrote {', '.join(path.name for path in written)} to {out}; use it with --model {out}")
