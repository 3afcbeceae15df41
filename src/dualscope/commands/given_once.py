"""An option that takes one value and is given twice is refused: the last would win, and nobody would be told."""

from collections import Counter
from typing import Any

from typer.core import TyperCommand, TyperOption

from dualscope.core.errors import InputError


class GivenOnce(TyperCommand):
    """A command each of whose options is given once, or may be given several times and says so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                raise InputError(
                    f"{option.opts[0]} was given {times} times and takes one value; where it can be several, they "
                    "stand in one, with commas (see --help)"
                )
        return super().parse_args(ctx, args)
