"""Work that an interruption does not lose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def resumable(place: str | Path, saved: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Inside, Ctrl-C says where the finished part is and how to go on, and ends with exit code 130.

    ``saved`` says whether there is a finished part.
    """
    try:
        yield
    except KeyboardInterrupt:
        if saved():
            said = f"what is finished is in {place}; the same command goes on from there"
        else:
            said = "nothing was finished yet; the same command starts again"
        typer.echo(f"interrupted: {said}", err=True)
        raise typer.Exit(130) from None
