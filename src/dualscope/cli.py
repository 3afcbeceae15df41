"""The command line: assembles the commands, and turns errors into messages and exit codes.

Nothing here or in ``commands`` imports torch at module level, so ``--help`` is instant.
"""

import errno
import inspect
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import typer

from dualscope._version import __version__
from dualscope.commands import (
    attempt,
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
from dualscope.commands.given_twice import SaysWhatCounts
from dualscope.commands.resumable import ended_like_interrupted, exit_code
from dualscope.core.called import called
from dualscope.core.errors import InputError
from dualscope.core.strangers import printable, reason

app = typer.Typer(
    name="dualscope",
    help="Is in-context learning gradient descent? Measure it, on any causal language model.",
    no_args_is_help=True,
    add_completion=False,
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
    "pack": pack.pack,
    "export": export.export,
    "try": attempt.attempt,
    "list": listing.list_names,
    "validate": validate.validate,
    "doctor": doctor.doctor,
    "explore": explore.explore,
    "convert": convert.convert,
    "theory": theory.theory,
    "regression": regression.regression,
    "train": train.train,
}


def help_of(command: Callable[..., Any]) -> str:
    """The docstring with the terminal's line breaks, not the source's; examples, which are indented, keep theirs."""
    parts = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else " ".join(part.split()) for part in parts)


for name, command in COMMANDS.items():
    app.command(name, cls=SaysWhatCounts, help=help_of(command))(command)


def main() -> None:
    """Entry point: bad input is one message and exit code 2, an interruption 130 (or 143), a fault of ours 70."""
    try:
        with ended_like_interrupted():
            app(prog_name=called())
    except InputError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        typer.echo("interrupted", err=True)
        sys.exit(exit_code(stop))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            typer.echo("error: the disk is full: free some space and give the same command again", err=True)
            sys.exit(1)
        typer.echo(f"error: {printable(_last_words(error))}", err=True)
        sys.exit(70)


def _last_words(error: Exception) -> str:
    """One line about a fault of ours; the traceback goes to a file."""
    said = f"a fault in dualscope ({type(error).__name__}: {reason(error)})"
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="dualscope-fault-",
            suffix=".txt",
            encoding="utf-8",
            errors="backslashreplace",
            delete=False,
        ) as file:
            file.write(f"dualscope {__version__}\n{' '.join(sys.argv)}\n\n")
            file.write("".join(traceback.format_exception(error)))
    except OSError as second:
        return f"{said}; its traceback could not be written ({second.strerror})"
    return f"{said}; please report it with {file.name}"


if __name__ == "__main__":
    main()
