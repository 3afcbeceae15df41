"""Charts for notebooks and papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualscope.findings.titles import metric_title
from dualscope.report.charts.new_figure import new_figure

if TYPE_CHECKING:
    import numpy as np


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
