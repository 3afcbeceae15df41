"""The sections of the page, in the order in which they are read."""

from collections.abc import Callable

from dualscope.report.charts.chart import Section
from dualscope.report.data import Data
from dualscope.report.sections import (
    accuracy,
    alpha,
    compared,
    controls,
    gradients,
    heads,
    hypotheses,
    kendall,
    layers,
    plugin_metrics,
    prediction,
    provenance,
    published,
    queries,
    regression,
    response,
    similarity,
    specifications,
    sweeps,
    verdict,
)

SECTIONS: tuple[Callable[[Data], Section | None], ...] = (
    response.section,
    verdict.section,
    compared.section,
    hypotheses.section,
    accuracy.section,
    prediction.section,
    similarity.section,
    layers.section,
    controls.section,
    specifications.section,
    alpha.section,
    gradients.section,
    heads.section,
    kendall.section,
    plugin_metrics.section,
    sweeps.section,
    queries.section,
    published.section,
    regression.section,
    provenance.section,
)
"""Each makes its section from the data; None where it has nothing to do with these runs."""
