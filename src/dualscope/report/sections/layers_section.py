"""Likeness layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dualscope.core.spec import IN_CONTEXT
from dualscope.findings.answer import PRIMARY, described, learner_title, metric_title
from dualscope.findings.verdict import CEILING
from dualscope.report.charts.chart import Chart, Item, Section, Tabs
from dualscope.report.charts.chart_makers import by_layer
from dualscope.report.charts.curves import Key, Line, band, curve, curves, line_rows, pick
from dualscope.report.charts.palette import OTHERS
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject

METRICS = {
    "sim_aou": "the changes of the attention outputs",
    "sim_aou_centered": "the changes of the attention outputs, each less its mean over queries",
    "sim_aou_direct": "what each layer's own update does to the attention outputs, without drift from below",
    "sim_aou_norm": "the changes of the attention outputs scaled to unit norm (the older metric)",
    "sim_am": "the attention maps",
    "sim_am_delta": "the changes of the attention maps",
}


def section(data: Data) -> Section:
    made = [(name, chart) for name in METRICS if (chart := _chart(data, name)) is not None]
    items: list[Item] = [Tabs("layer-tabs", "Likeness by layer of", tuple(made))] if made else []
    about = "The claim is about layers: each layer's attention should do what a step of gradient descent does."
    missing = "" if made else "likeness by layer"
    return Section("layers", "Likeness by layer", tuple(items), about, unmeasured=missing)


def _chart(data: Data, metric: str) -> Chart | None:
    from dualscope.report.published import layer_traces

    clear: list[tuple[str, tuple[str, str]]] = []

    def drawn(subject: Subject, task: str) -> list[dict[str, Any]]:
        lines, learners = data.lines(subject), subject.gradient_learners
        traces = curves(lines, task, metric, learners, subject.variants, subject.palette, (IN_CONTEXT.label,))
        if not traces:
            return []
        controls = _controls(subject, lines, task, metric)
        traces += [curve(name, line, shade, dash, False, symbol=mark) for name, line, shade, dash, mark in controls]
        ceiling = pick(lines, task, "trained", CEILING.label, metric, (IN_CONTEXT.label,))
        if ceiling is not None:
            traces.insert(0, band("ceiling: ICL against itself", ceiling, "@green"))
        if metric == PRIMARY:
            clear.extend(_clear(data, subject, lines, task, [line for _, line, *_ in controls]))
        return traces + layer_traces(task, metric, learners, traces)

    rows = (
        row
        for s in data.subjects
        for row in line_rows(
            data.lines(s), metric, [*s.gradient_learners, *_nulls(s), CEILING.label], s.variants, s.tasks, s.name
        )
    )
    untrained = any(set(subject.variants) - {"trained"} for subject in data.subjects)
    shell = Chart(
        f"layers-{metric}",
        f"{metric_title(metric)} by layer",
        f"The cosine between {METRICS[metric]}, with 95 % intervals. Grey and olive lines are controls that teach "
        f"nothing{'; dotted lines are of untrained weights' * untrained}. The band is in-context learning against "
        "itself with other demonstrations.",
        "A layer supports the claim only where a learner's line lies clear of every control's line. ",
        metrics=(metric,),
    )
    made = by_layer(shell, data, drawn, ["model", "task", "learner", "variant", "layer", metric], rows)
    return None if made is None else replace(made, reads=made.reads + _clear_words(clear))


Drawn = tuple[str, Line, str, str, str]
"""A control's name, line, colour, dash and mark."""


def _controls(subject: Subject, lines: Mapping[Key, Line], task: str, metric: str) -> list[Drawn]:
    """The deciding controls that have layers."""
    found: list[Drawn] = []
    if metric == PRIMARY:
        for index, learner in enumerate(subject.gradient_learners[:2]):
            line = pick(lines, task, "trained", learner, "sim_aou_mismatched", (IN_CONTEXT.label,))
            if line is not None:
                mark = ("line-ns-open", "x")[index]
                found.append((f"{learner}, mismatched queries", line, "@grey", "dash", mark))
    for index, null in enumerate(_nulls(subject)):
        line = pick(lines, task, "trained", null, metric, (IN_CONTEXT.label,))
        if line is not None:
            title, said = learner_title(subject.learnings[null]), described(subject.learnings[null].name)
            found.append(
                (
                    title,
                    line,
                    said.colour or "@olive",
                    ("solid", "dashdot", "longdash", "dot")[index % 4],
                    said.mark or OTHERS[index % len(OTHERS)],
                )
            )
    return found


def _nulls(subject: Subject) -> list[str]:
    """Contexts and changes that teach nothing, under no control."""
    return [
        name for name in subject.learners if subject.role(name) == "null" and subject.learnings[name].control is None
    ]


def _clear(
    data: Data, subject: Subject, lines: Mapping[Key, Line], task: str, controls: Sequence[Line]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each learner on this task; the layers where its interval is above every control's line, and the verdict."""
    answers = {(a["task"], a["learner"]): a for v in subject.verdicts()[:1] for a in v["answers"]}
    for learner in subject.gradient_learners:
        own = pick(lines, task, "trained", learner, PRIMARY, (IN_CONTEXT.label,))
        untrained = pick(lines, task, "untrained", learner, PRIMARY, (IN_CONTEXT.label,))
        answer = answers.get((task, learner))
        if own is None or answer is None:
            continue
        others = [dict(zip(line.layers, line.values, strict=True)) for line in [*controls, untrained] if line]
        free = [
            str(layer)
            for layer, low in zip(own.layers, own.lows, strict=True)
            if low > max((o[layer] for o in others if o.get(layer, math.nan) == o.get(layer)), default=0.0)
        ]
        several = len(free) > 1
        where = f"Layer{'s' * several} {', '.join(free)} {'are' if several else 'is'}" if free else "No layer is"
        who = f"`{learner}` on {task}" + (f" ({subject.name})" if data.side_by_side else "")
        yield who, (where, answer["answer"])


def _clear_words(found: Sequence[tuple[str, tuple[str, str]]]) -> str:
    """Learners of the same layers and verdict in one sentence."""
    alike: dict[tuple[str, str], list[str]] = {}
    for who, said in found:
        alike.setdefault(said, []).append(who)
    return " ".join(
        f"{where} clear for {', '.join(names)} (over all layers: {answer})." for (where, answer), names in alike.items()
    )
