"""Controls, ceilings and noise: what the likeness is to be read against."""

from __future__ import annotations

from itertools import product
from typing import Any

from dualscope.core.spec import IN_CONTEXT
from dualscope.core.statistics import SNR_THRESHOLD
from dualscope.report.charts.chart import Chart, Item, Section
from dualscope.report.charts.chart_makers import ChartPoint, bars, by_layer
from dualscope.report.charts.curves import Look, curve, line_rows
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject, where
from dualscope.report.table import Badge, Entry, Number, Table

CHANGES = (
    "sim_aou",
    "sim_aou_centered",
    "sim_aou_direct",
    "sim_aou_mismatched",
    "sim_aou_orthogonal",
    "sim_aou_dilution",
    "sim_aou_random",
    "sim_am_delta",
)

SIMILARITIES = (
    "sim_aou",
    "sim_aou_norm",
    "sim_aou_centered",
    "sim_aou_orthogonal",
    "sim_am",
    "sim_am_delta",
    "sim_am_centered",
    "sim_am_softmax",
)
CEILINGS = tuple(IN_CONTEXT.under(control).label for control in ("redraw", "reorder"))


def section(data: Data) -> Section:
    wanted = {
        "controls": _everything(data),
        "a ceiling (in-context/redraw or in-context/reorder)": _shares(data),
        "predicted labels": _histograms(data),
        "signal to noise": _noise(data),
    }
    items: list[Item] = [item for item in wanted.values() if item is not None]
    items[1:1] = _to_nulls(data)
    items += filter(None, [_mass(data)])
    missing = "; ".join(name for name, item in wanted.items() if item is None)
    about = (
        "Any two changes are a little alike. Here is what everything that is not the claim scores on the "
        "same measures, and how far each number is above rounding."
    )
    return Section("controls", "Controls, ceilings, noise", tuple(items), about, folded=True, unmeasured=missing)


def _everything(data: Data) -> Item | None:
    rows: list[list[Entry]] = []
    measured = {row["metric"] for subject in data.subjects for row in subject.rows}
    metrics = [name for name in CHANGES if name in measured]
    for subject in data.subjects:
        for task, learner in product(subject.tasks, subject.learners):
            found = [subject.get(task, learner, m, references=("in-context",)) for m in metrics]
            if any(found):
                rows.append([subject.name, task, learner, *(Number.of(row) for row in found)])
    if not rows:
        return None
    title = "Every learner and control against in-context learning, on the trained model"
    return Table.build(["model", "task", "learner or control", *metrics], rows, title=title)


def _to_nulls(data: Data) -> list[Item]:
    """Whose likeness to what: a null context's own likeness to ICL is not a learner's likeness to a null context."""
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task, learner in product(subject.tasks, subject.gradient_learners):
            for null in _nulls(subject, task, learner, "sim_aou_to_null"):
                wanted = [
                    (learner, "sim_aou", "in-context"),
                    (learner, "sim_aou_to_null", null),
                    (null, "sim_aou", "in-context"),
                    (learner, "sim_aou_null", null),
                ]
                found = (Number.of(subject.get(task, who, metric, references=(to,))) for who, metric, to in wanted)
                rows.append([subject.name, task, learner, null, *found])
    columns = [
        *("model", "task", "learner", "null"),
        *("learner to ICL", "learner to the null", "the null itself to ICL", "learner to ICL beyond the null"),
    ]
    title = "Contexts that teach nothing: who is like whom (sim_aou, sim_aou_to_null, sim_aou_null)"
    return [Table.build(columns, rows, title=title)] if rows else []


def _shares(data: Data) -> Item | None:
    """Every similarity as a share of what in-context learning scores against itself, drawn or ordered anew."""
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task, learner, metric in product(subject.tasks, subject.gradient_learners, SIMILARITIES):
            value, *tops = (subject.get(task, n, metric, references=("in-context",)) for n in (learner, *CEILINGS))
            if value is not None and any(tops):
                shares = [Number(value["value"] / top["value"] if top and top["value"] else None) for top in tops]
                rows.append([subject.name, task, learner, metric, Number.of(value), *shares])
    if not rows:
        return None
    columns = ["model", "task", "learner", "metric", "value", *(f"share of {top}" for top in CEILINGS)]
    title = "Every similarity as a share of its ceiling: in-context learning against itself"
    return Table.build(columns, rows, title=title)


def _nulls(subject: Subject, task: str, learner: str, metric: str) -> list[str]:
    rows = where(subject.rows, task=task, label=learner, metric=metric, variant="trained")
    return [row["reference"] for row in rows if row["reference"] is not None]


def _histograms(data: Data) -> Item | None:
    """Predicted labels: a learner that always says the same is no learner."""
    points = [
        ChartPoint(
            data.title(subject, task),
            row["label"],
            Look(subject.colour(row["label"])),
            word,
            Number.of(row),
            (subject.name, task, row["label"], word),
            task,
        )
        for subject in data.subjects
        for task in subject.tasks
        for learner in ("zero-shot", "in-context", *subject.gradient_learners)
        for row in where(subject.rows, task=task, label=learner, metric="predicted_share", variant="trained")
        for word in [row["reference"] or ""]
    ]
    shell = Chart(
        "predicted",
        "What is predicted",
        "How often each label is predicted, on the trained model, mean over seeds.",
        "A learner that always says the same label agrees with anything by accident.",
        metrics=("predicted_share",),
    )
    axes = {"xaxis": {"type": "category"}, "yaxis": {"tickformat": ".0%", "rangemode": "tozero"}}
    columns = ["model", "task", "learner", "label", "share"]
    return bars(shell, points, columns, {"barmode": "group", **axes}, lambda _: 230)


_NOISE = {
    "snr": "outputs",
    "snr_centered": "outputs, less the mean over queries",
    "snr_orthogonal": "outputs, without zero-shot's direction",
    "snr_scores": "scores",
}


def _noise(data: Data) -> Item | None:
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        lines = data.lines(subject)
        for task in subject.tasks:
            for learner, (metric, what) in product(["in-context", *subject.gradient_learners], _NOISE.items()):
                line = lines.get((task, "trained", learner, metric, "zero-shot"))
                if line is None:
                    continue
                low = [str(layer) for layer, v in zip(line.layers, line.values, strict=True) if v < SNR_THRESHOLD]
                said = Badge(f"layers {', '.join(low)}", "no") if low else Badge("none", "yes")
                weakest = min((v for v in line.values if v == v), default=None)
                rows.append([subject.name, task, learner, what, Number(weakest, digits=1), said])
    if not rows:
        return None
    columns = [
        "model",
        "task",
        "learner",
        "change of",
        "weakest layer's signal to noise",
        f"layers below {SNR_THRESHOLD:g}",
    ]
    return Table.build(
        columns,
        rows,
        title="Signal to noise: the size of a change divided by its rounding error, which shows when all sums are "
        "taken in another order. "
        f"Below {SNR_THRESHOLD:g}, compare again with --dtype float64",
    )


def _mass(data: Data) -> Chart | None:
    weights = {"demo_mass": ("on demonstrations", "@green"), "bos_mass": ("on the first token", "@grey")}
    shell = Chart(
        "mass",
        "Where attention goes",
        "The softmax weight of the read position on the demonstrations, and on the first token (BOS), in "
        "the context, mean over heads and queries.",
        "Where the weight on demonstrations is near 0, the context can change little there directly; what "
        "differs came from below.",
        metrics=tuple(weights),
    )

    def drawn(subject: Subject, task: str) -> list[dict[str, Any]]:
        lines = {m: data.lines(subject).get((task, "trained", "in-context", m, None)) for m in weights}
        return [curve(name, line, shade, "solid", True) for m, (name, shade) in weights.items() if (line := lines[m])]

    rows: list[list[Entry]] = [
        [*row[:3], metric, *row[3:]]
        for metric in weights
        for s in data.subjects
        for row in line_rows(data.lines(s), metric, ["in-context"], s.variants, s.tasks, s.name)
    ]
    return by_layer(shell, data, drawn, ["model", "task", "learner", "metric", "variant", "layer", "weight"], rows)
