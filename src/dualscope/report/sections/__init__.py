"""The sections of the page, in the order in which they are read."""

from collections.abc import Callable
from dataclasses import replace

from dualscope.report.charts.chart import Note, Section
from dualscope.report.report_data import Data
from dualscope.report.sections import accuracy_section as accuracy
from dualscope.report.sections import attention_section as attention
from dualscope.report.sections import compared_section as compared
from dualscope.report.sections import controls_section as controls
from dualscope.report.sections import gradients_section as gradients
from dualscope.report.sections import hypotheses_section as hypotheses
from dualscope.report.sections import layers_section as layers
from dualscope.report.sections import plugin_metrics_section as plugin_metrics
from dualscope.report.sections import prediction_section as prediction
from dualscope.report.sections import provenance_section as provenance
from dualscope.report.sections import published_section as published
from dualscope.report.sections import queries_section as queries
from dualscope.report.sections import regression_section as regression
from dualscope.report.sections import response_section as response
from dualscope.report.sections import similarity_section as similarity
from dualscope.report.sections import specifications_section as specifications
from dualscope.report.sections import sweeps_section as sweeps
from dualscope.report.sections import verdict_section as verdict

SECTIONS: tuple[Callable[[Data], Section | None], ...] = (
    response.section,
    verdict.section,
    compared.section,
    layers.section,
    hypotheses.section,
    accuracy.section,
    sweeps.section,
    specifications.section,
    attention.single_heads,
    plugin_metrics.section,
    regression.section,
    prediction.section,
    similarity.section,
    controls.section,
    gradients.likeness_of_learners,
    gradients.section,
    attention.attended_demonstrations,
    queries.section,
    published.section,
    provenance.section,
)
"""Each makes its section from the data; None where it has nothing to do with these runs."""

EXPERIMENTS = (regression.section, provenance.section)
"""Those of runs without a model: regression experiments."""


def sections_of(data: Data) -> list[Section]:
    """Those that have something to show; the provenance, which comes last, says what the others would need."""
    makers = SECTIONS if data.subjects else EXPERIMENTS
    made = [section for make in makers if (section := make(data)) is not None]
    missing = [section.unmeasured for section in made if section.unmeasured]
    shown = [section for section in made if section.items]
    if missing:
        note = Note(f"Not in these runs: {'; '.join(missing)}.")
        shown[-1] = replace(shown[-1], items=(note, *shown[-1].items))
    return shown
