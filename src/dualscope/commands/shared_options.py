"""What commands have in common: the option ``--offline``, and a message where an option is given twice."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from dualscope.core import network


def _stay_offline(context: typer.Context, wanted: bool) -> bool:
    """From here to the command's end, in this process and in the workers that it starts."""
    context.with_resource(network.offline(wanted))
    return wanted


OFFLINE = typer.Option(False, "--offline", help="Fetch nothing.", callback=_stay_offline)


MANY = "May be given several times."
NONE: list[Any] = []
"""Where an option that may be given several times is not given."""


class OptionGroup:
    """Options that belong together: in a command's help they share a panel, in its code they are one argument."""

    panel: ClassVar[str]

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """As typer reads them off a command: ``name: Annotated[type, Option(...)] = default``, each in the panel."""
        found = []
        for name, hint in get_type_hints(cls, include_extras=True).items():
            if name != "panel":
                kind, option = get_args(hint)
                option = copy(option)
                option.rich_help_panel = cls.panel
                shown: Any = Annotated[kind, option]
                found.append(Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(cls, name), annotation=shown))
        return found


def in_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, with the options of its groups in the place of the groups."""
    hints = get_type_hints(command, include_extras=True)
    own: list[Parameter] = []
    groups: dict[str, type[OptionGroup]] = {}
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            own += kind.parameters()
        else:
            own.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{option.name: given.pop(option.name) for option in kind.parameters()})
        command(**given)

    flat.__signature__ = Signature(own)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    return flat


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


# Work that an interruption does not lose.


class Ended(KeyboardInterrupt):
    """A signal asked the program to end: the same is done as for Ctrl-C."""

    asked: ClassVar[int | None] = None
    """The signal that did, if one has: Ray makes a plain KeyboardInterrupt of whatever a handler raises."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM (a cluster's time limit) and SIGHUP (a closed terminal) end the work as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        Ended.asked = number
        raise Ended(number)

    Ended.asked = None
    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that stays
                before[number] = signal.signal(number, end)
    except ValueError:  # not the main thread, which decides about signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (stop.number if isinstance(stop, Ended) else Ended.asked or signal.SIGINT)


@contextmanager
def resumable(place: str | Path, saved: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Inside, Ctrl-C says where the finished part is and how to go on, and ends with exit code 130.

    ``saved`` says whether there is a finished part.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if saved():
            said = f"what is finished is in {place}; the same command goes on from there"
        else:
            said = "nothing was finished yet; the same command starts again"
        say_interrupted(said)
        raise typer.Exit(exit_code(stop)) from None


def say_interrupted(more: str = "") -> None:
    """On a line of its own: a terminal has just shown ^C on this one."""
    begun = "\n" if sys.stderr.isatty() else ""
    typer.echo(f"{begun}interrupted{': ' if more else ''}{more}", err=True)
