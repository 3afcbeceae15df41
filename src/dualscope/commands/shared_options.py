"""What commands have in common: the option ``--offline``, and a message where an option is given twice."""

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from dualscope.core import network


def _stay_offline(context: typer.Context, wanted: bool) -> bool:
    """From here to the command's end, in this process and in the workers that it starts."""
    context.with_resource(network.offline(wanted))
    return wanted


OFFLINE = typer.Option(False, "--offline", help="Fetch nothing.", callback=_stay_offline)


# An option that takes one value and is given twice: the last one counts, as everywhere, and that is said.
#
# Options such as ``--model`` may be repeated and add up, so a user may expect it of ``--shots 2 --shots 4`` too.


class NotesRepeatedOptions(TyperCommand):
    """A command that tells which value counts where an option's others are dropped."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        last, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                typer.echo(
                    f"note: {option.opts[0]} was given {times} times, and the last counts: {last[option.name]} "
                    "(several values, where --help allows them, stand in one, with commas)",
                    err=True,
                )
        return super().parse_args(ctx, args)
