"""Controls, ceilings and noise: what the likeness is to be read against."""

from __future__ import annotations

from itertools import product

from dualscope.core.spec import IN_CONTEXT
from dualscope.core.statistics import SNR_THRESHOLD
from dualscope.report.charts.chart import Chart, Item, Panel, Section, plain, short
from dualscope.report.charts.curves import curve, line_panel, line_rows, line_span
from dualscope.report.data import Data
from dualscope.report.subject import Subject
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


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
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
        for task in subject.tasks:
            for learner in subject.learners:
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
                to_icl = subject.get(task, learner, "sim_aou", references=("in-context",))
                itself = subject.get(task, null, "sim_aou", references=("in-context",))
                found = [
                    to_icl,
                    subject.get(task, learner, "sim_aou_to_null", references=(null,)),
                    itself,
                    subject.get(task, learner, "sim_aou_null", references=(null,)),
                ]
                rows.append([subject.name, task, learner, null, *(Number.of(row) for row in found)])
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
        for task in subject.tasks:
            for learner in subject.gradient_learners:
                for metric in SIMILARITIES:
                    value = subject.get(task, learner, metric, references=("in-context",))
                    tops = [subject.get(task, top, metric, references=("in-context",)) for top in CEILINGS]
                    if value is None or not any(tops):
                        continue
                    shares = [Number(value["value"] / top["value"] if top and top["value"] else None) for top in tops]
                    rows.append([subject.name, task, learner, metric, Number.of(value), *shares])
    if not rows:
        return None
    columns = ["model", "task", "learner", "metric", "value", *(f"share of {top}" for top in CEILINGS)]
    title = "Every similarity as a share of its ceiling: in-context learning against itself"
    return Table.build(columns, rows, title=title)


def _nulls(subject: Subject, task: str, learner: str, metric: str) -> list[str]:
    return [
        row["reference"]
        for row in subject.rows
        if (row["task"], row["label"], row["metric"], row["variant"]) == (task, learner, metric, "trained")
        and row["reference"] is not None
    ]


def _histograms(data: Data) -> Item | None:
    """Predicted labels: a learner that always says the same is no learner."""
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        learners = ["zero-shot", "in-context", *subject.gradient_learners]
        for task in subject.tasks:
            own = [
                row
                for row in subject.rows
                if (row["task"], row["metric"], row["variant"]) == (task, "predicted_share", "trained")
                and row["label"] in learners
            ]
            words = list(dict.fromkeys(row["reference"] or "" for row in own))
            traces = []
            for learner in learners:
                shares = {row["reference"] or "": row for row in own if row["label"] == learner}
                if shares:
                    traces.append(
                        {
                            "type": "bar",
                            "name": plain(learner),
                            "x": [plain(w) for w in words],
                            "y": [short(shares[w]["value"]) if w in shares else None for w in words],
                            "marker": {"color": subject.colour(learner)},
                        }
                    )
                    rows += [[subject.name, task, learner, w, Number.of(shares[w])] for w in words if w in shares]
            if traces:
                layout = {
                    "barmode": "group",
                    "xaxis": {"type": "category"},
                    "yaxis": {"tickformat": ".0%", "rangemode": "tozero"},
                }
                title = f"{task} · {subject.name}" if data.side_by_side else task
                panels.append(Panel(traces, layout, title, 230, task=task))
    if not panels:
        return None
    return Chart(
        "predicted",
        "What is predicted",
        "How often each label is predicted, on the trained model, mean over seeds.",
        "A learner that always says the same label agrees with anything by accident.",
        tuple(panels),
        Table.build(["model", "task", "learner", "label", "share"], rows),
        ("predicted_share",),
    )


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
        title="Signal to noise: a change over what rounding does to it, seen by taking all sums in another order. "
        f"Below {SNR_THRESHOLD:g}, compare again with --dtype float64",
    )


def _mass(data: Data) -> Chart | None:
    made = []
    for subject in data.subjects:
        for task in subject.tasks:
            traces = []
            for metric, shade in (("demo_mass", "@green"), ("bos_mass", "@grey")):
                line = data.lines(subject).get((task, "trained", "in-context", metric, None))
                if line is not None:
                    name = "on demonstrations" if metric == "demo_mass" else "on the first token"
                    traces.append(curve(name, line, shade, "solid", True))
            if traces:
                made.append((subject, task, traces))
    if not made:
        return None
    span = line_span(traces for *_, traces in made)
    panels = tuple(
        line_panel(traces, task, f"{task} · {s.name}" if data.side_by_side else task, span) for s, task, traces in made
    )
    rows: list[list[Entry]] = []
    for metric in ("demo_mass", "bos_mass"):
        for s in data.subjects:
            found = line_rows(data.lines(s), metric, ["in-context"], s.variants, s.tasks, s.name)
            rows += [[*row[:3], metric, *row[3:]] for row in found]
    return Chart(
        "mass",
        "Where attention goes",
        "The softmax weight of the read position on the demonstrations, and on the first token (BOS), in "
        "the context, mean over heads and queries.",
        "Where the weight on demonstrations is near 0, the context can change little there directly; what "
        "differs came from below.",
        panels,
        Table.build(["model", "task", "learner", "metric", "variant", "layer", "weight"], rows),
        ("demo_mass", "bos_mass"),
    )
