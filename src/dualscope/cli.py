"""The command line: assembles the commands, and turns errors into messages and exit codes.

Nothing here or in ``commands`` imports torch at module level, so ``--help`` is instant.
"""

import errno
import inspect
import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from dualscope._start import listen
from dualscope._version import __version__
from dualscope.commands import (
    attempt,
    bake,
    convert,
    doctor,
    explore,
    export,
    pack,
    regression,
    report,
    run,
    theory,
    train,
    validate,
)
from dualscope.commands import list as listing
from dualscope.commands.shared_options import NotesRepeatedOptions, ended_like_interrupted, exit_code, say_interrupted
from dualscope.core.command_hints import called
from dualscope.core.errors import InputError, is_out_of_memory
from dualscope.core.untrusted_files import printable, reason

# Help that reads as it was written: a flag takes no value, and [mlflow] is no markup.


MARKUP = re.compile(r"(?<!\\)\[(?=[a-z])")


def mended(params: list[Any]) -> list[Any]:
    """Options whose help shows no type where they take no value, and keeps what stands in square brackets."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.display_type_rich = _no_type  # type: ignore[method-assign]
        if getattr(param, "help", None):
            param.help = MARKUP.sub(r"\\[", param.help)
    return params


def _no_type(ctx: Any) -> None:  # noqa: ARG001
    return None


class PlainHelp(TyperCommand):
    """A command with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return mended(super().get_params(ctx))


class PlainHelpGroup(TyperGroup):
    """The program with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return mended(super().get_params(ctx))


app = typer.Typer(
    name="dualscope",
    help="Is in-context learning gradient descent? Measure it, on any causal language model.",
    no_args_is_help=True,
    cls=PlainHelpGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dualscope {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Options that every command shares."""


COMMANDS: dict[str, Callable[..., Any]] = {
    "run": run.run,
    "report": report.report,
    "share": report.share,
    "pack": pack.pack,
    "export": export.export,
    "try": attempt.attempt,
    "list": listing.list_names,
    "validate": validate.validate,
    "doctor": doctor.doctor,
    "explore": explore.explore,
    "convert": convert.convert,
    "bake": bake.bake,
    "theory": theory.theory,
    "regression": regression.regression,
    "train": train.train,
}


PANELS = {
    "Measure": ("run", "try", "explore", "bake"),
    "Look at what was measured": ("report", "share", "export", "pack"),
    "Your models and data": ("list", "validate", "doctor", "convert", "train"),
    "Theory": ("theory", "regression"),
}
"""Where a command stands in the help."""


def help_of(command: Callable[..., Any]) -> str:
    """The docstring with the terminal's line breaks, not the source's, and without its examples."""
    parts = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts if not _is_example(part))


def examples_of(command: Callable[..., Any]) -> str:
    """The commands in a docstring, a line each."""
    parts = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    lines = [line.strip() for part in parts if _is_example(part) for line in part.splitlines()]
    return "\n\n".join(["Examples:", *(MARKUP.sub(r"\\[", line) for line in lines)]) if lines else ""


def _is_example(part: str) -> bool:
    return part.lstrip().startswith("dualscope ")


class Command(PlainHelp, NotesRepeatedOptions):
    """A command that ends an interruption in words: Typer itself would say "Aborted" and exit with 1."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        """What cannot be read is said without the name of an exception."""
        try:
            return super().make_context(*given, **more)
        except Exception as error:
            said = getattr(error, "message", None)
            if isinstance(said, str):
                error.message = said.replace("Value error, ", "")  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            say_interrupted()
            raise typer.Exit(exit_code(stop)) from None


for name, command in COMMANDS.items():
    panel = next((title for title, names in PANELS.items() if name in names), None)
    added = app.command(
        name, cls=Command, help=help_of(command), epilog=examples_of(command) or None, rich_help_panel=panel
    )
    added(command)


def main() -> None:
    """Entry point: bad input is one message and exit code 2, an interruption 130 (or 143), a fault of ours 70."""
    listen()
    _mend_streams()
    try:
        with ended_like_interrupted():
            _check_here()
            app(prog_name=called())
    except InputError as error:
        typer.echo(_wrapped(f"error: {printable(str(error))}"), err=True)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        say_interrupted()
        sys.exit(exit_code(stop))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            typer.echo("error: the disk is full: free some space and give the same command again", err=True)
            sys.exit(1)
        if any(is_out_of_memory(one) for one in _chain(error)):
            typer.echo("error: memory is short: give the program more, or ask it for less", err=True)
            sys.exit(2)
        if said := _said_by_the_system(error):
            typer.echo(f"error: {printable(said)}", err=True)
            sys.exit(2)
        typer.echo(f"error: {printable(_last_words(error))}", err=True)
        sys.exit(70)


def _wrapped(message: str) -> str:
    """At words on a terminal, at its width; elsewhere as it is, a line a message."""
    if not sys.stderr.isatty():
        return message
    width = max(40, shutil.get_terminal_size().columns)
    wrap = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap.fill(line) for line in message.splitlines())


def _mend_streams() -> None:
    """Whatever the terminal is, words can be written to it: one that knows no umlaut gets them escaped, and where there
    is none at all they go nowhere.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_here() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("the current folder was removed; go to one that is there (cd)") from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _said_by_the_system(error: Exception) -> str | None:
    """A file, a limit or a connection that the system refused is no fault of ours: its words, with the name."""
    numbered = (one for one in _chain(error) if isinstance(one, OSError) and one.errno is not None)
    found = next(numbered, None)
    if found is None:
        return None
    if found.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: raise the limit (ulimit -n), or use fewer --jobs"
    if found.errno in (errno.EAGAIN, errno.ENOMEM):
        return f"the system refuses more processes or memory ({found.strerror}): raise the limit (ulimit)"
    names = [str(name) for name in (found.filename, found.filename2) if name is not None]
    return f"{' -> '.join(names) or 'the system'}: {reason(found)}"


def _last_words(error: Exception) -> str:
    """One line about a fault of ours; the traceback goes to a file."""
    said = f"a fault in dualscope ({type(error).__name__}: {reason(error)})"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="dualscope-fault-", suffix=".txt", encoding="utf-8", errors="backslashreplace", delete=False
        ) as file:
            file.write(f"dualscope {__version__}\n{' '.join(sys.argv)}\n\n")
            file.write("".join(traceback.format_exception(error)))
    except OSError as second:
        return f"{said}; its traceback could not be written ({second.strerror})"
    return f"{said}; please report it with {file.name}"


if __name__ == "__main__":
    main()
