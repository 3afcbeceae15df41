"""The page on the command line, from the commands themselves."""

from typing import Any

import typer

from docs.pages.markdown import prose, table

HEAD = """\
# The command line

What `dualscope COMMAND --help` says, for all commands. This page is written from them (`python -m docs.generate`), and
a test compares both.

| exit code | means |
|---|---|
| 0 | all is well |
| 1 | some cells failed; they are listed, the others are stored, and the same command tries them again |
| 2 | bad input: one message that names what was found and what is accepted |
| 70 | a fault of ours: one line, and a file with the traceback |
| 130, 143 | interrupted (Ctrl-C, SIGTERM); the same command goes on where it stopped |
"""


def page() -> str:
    from dualscope.cli import app

    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([HEAD, *(section(name, command) for name, command in commands.items())])


def section(name: str, command: Any) -> str:
    about = "\n\n".join(paragraph(text) for text in (command.help or "").replace("\b", "").split("\n\n"))
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["dualscope", name, "[OPTIONS]", *(argument_name(a) for a in arguments)])
    rows = [[f"`{argument_name(a)}`", prose(a.help or "")] for a in arguments]
    rows += [[spelling(option), prose(meaning(option))] for option in options]
    return f"## {name}\n\n{about}\n\n    {usage}\n\n{table(['argument or option', 'meaning'], rows)}\n"


def paragraph(text: str) -> str:
    """An example stands as code; all else is prose."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and all(line.startswith("dualscope ") for line in lines):
        return "\n".join(f"    {line}" for line in lines)
    return " ".join(lines)


def argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def spelling(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    called = option.metavar or option.opts[0].removeprefix("--").replace("-", "_").upper()
    return names if option.is_flag else f"{names} {called}"


def meaning(option: Any) -> str:
    said = [(option.help or "").strip()]
    if option.default not in (None, False, "", (), []) and not callable(option.default):
        said.append(f"Default: `{option.default}`.")
    return " ".join(said)
