"""Charts for notebooks and papers."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError
from dualscope.findings.titles import metric_title

if TYPE_CHECKING:
    import numpy as np


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that a notebook shows as a picture, also where pyplot was never imported."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot() needs matplotlib: pip install 'dualscope[plots]'") from None

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            picture = BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    return Shown(figsize=(width, height), layout="constrained")


def layer_chart(lines: Mapping[str, np.ndarray], metric: str) -> Any:
    """One line a learner, [layers] each."""
    figure = new_figure(6, 3.2)
    axes = figure.subplots()
    for name, values in lines.items():
        axes.plot(range(len(values)), values, marker="o", label=name)
    axes.set(xlabel="layer", ylabel=metric, title=metric_title(metric))
    axes.axhline(0, color="0.7", linewidth=0.6)
    axes.legend(frameon=False)
    return figure
