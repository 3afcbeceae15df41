"""Metrics of the user's own, which no other section speaks of."""

from __future__ import annotations

from dualscope.report.charts.chart import Chart, Section, Tabs
from dualscope.report.charts.chart_makers import dots, rows_of
from dualscope.report.charts.dots import series_of
from dualscope.report.report_data import Data


def section(data: Data) -> Section | None:
    names = dict.fromkeys(row["metric"] for subject in data.subjects for row in subject.rows)
    own = [name for name in names if _is_own(name)]
    charts = [(name, made) for i, name in enumerate(own) if (made := _chart(data, name, f"own-{i}")) is not None]
    if not charts:
        return None
    about = "One number for each task and learner: the mean over layers and queries."
    return Section("own", "Metrics of your own", (Tabs("own-tabs", "Metric", tuple(charts)),), about)


def _is_own(name: str) -> bool:
    """Not among the built-in ones: a plugin's, whether or not it is loaded while the report is written."""
    from dualscope.metrics import METRICS
    from dualscope.studies.plugins import is_foreign

    return name not in METRICS or is_foreign(METRICS[name].function)


def _chart(data: Data, metric: str, name: str) -> Chart | None:
    shell = Chart(
        name,
        f"{metric} by task",
        "A metric that a plugin of this study defines. Bars: 95 % intervals over seeds and queries.",
        "Filled: the trained model. Hollow: the same learner on untrained weights.",
        metrics=(metric,),
    )
    return dots(
        shell,
        data,
        metric,
        lambda subject: series_of(subject, metric, subject.learners, subject.variants),
        ["model", "task", "learner", "variant", "against", metric],
        rows_of(data, ["task", "label", "variant", "reference"], metric=metric),
        floor=None,
        zero=False,
    )
