"""Figures for papers."""

from collections.abc import Sequence
from pathlib import Path


def write_figures(runs: Sequence[str | Path], out: str | Path) -> list[Path]:
    raise NotImplementedError
