"""An empty figure of matplotlib's (extra: plots)."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from dualscope.core.errors import InputError


def new_figure(width: float, height: float, shown: bool = True) -> Any:
    """A figure that a notebook shows as a picture, also where pyplot was never imported."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot() needs matplotlib: pip install 'dualscope[plots]'") from None

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            picture = BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    figure = (Shown if shown else Figure)(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
