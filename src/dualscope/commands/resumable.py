"""Work that an interruption does not lose."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def resumable(place: str | Path) -> Iterator[None]:
    """Inside, Ctrl-C says where the finished part is and how to go on, and ends with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted: what is finished is in {place}; the same command goes on from there", err=True
        )
        raise typer.Exit(130) from None
