"""The option ``--offline``, which every command that could fetch something has."""

import typer

from dualscope.core import network


def _stay_offline(context: typer.Context, wanted: bool) -> bool:
    """From here to the command's end, in this process and in the workers that it starts."""
    context.with_resource(network.offline(wanted))
    return wanted


OFFLINE = typer.Option(False, "--offline", help="Fetch nothing.", callback=_stay_offline)
