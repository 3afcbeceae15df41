"""The verdict: what the rows allow to be said, by a rule that is printed beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dualscope.core.spec import PLAIN, EpisodeSpec, LearnerSpec
from dualscope.findings.answer import HOW_TO_MEASURE, PRIMARY, learner_title, short
from dualscope.findings.verdict import CEILING
from dualscope.report.charts.chart import Chart, Item, Judgement, Matrix, Note, Panel, Section
from dualscope.report.charts.dots import Series, dots, span_of
from dualscope.report.report_data import Data
from dualscope.report.reported_run import Document
from dualscope.report.subject import Subject
from dualscope.report.table import Badge, Entry, Number, Table

KINDS = {"above the controls": "yes", "not above": "no", "inconclusive": "unclear", "not testable": "none"}
DENIED = ("not above", "not testable")
WORDS = {word: "not above the controls" if word == "not above" else word for word in KINDS}
EMBEDDED = (
    "The embedded model was trained on synthetic tasks of the kind that it is measured on. This verdict shows what the "
    "tool does, and says nothing about large language models."
)
STRONG = (
    "This section tests the strong claim: that attention changes layer by layer as it does under gradient descent. The "
    "shallow claim, that both learn similar functions, is tested by {where}."
)


def section(data: Data) -> Section:
    items: list[Item] = []
    judgements: list[Judgement] = []
    for subject in data.subjects:
        found = subject.verdicts()
        for number, verdict in enumerate(found):
            made = _judgement(subject, verdict, rule="" if judgements else verdict["rule"])
            judgements.append(replace(made, folded=number > 0))
        if not found:
            items.append(Note(f"{subject.name}: no learner was compared with in-context learning.", "missing"))
    chart = _chart(data)
    items = [_matrix(data), *items, *_missing(data), *([chart] if chart else []), *judgements, _shallow(data)]
    about = (
        "The papers' measure: does a learner change the attention outputs as the whole context does? The whole change "
        "also includes the part of the context's effect that does not depend on the labels."
    )
    return Section("verdict", "Likeness of the whole change", tuple(items), about)


def headlines(data: Data) -> list[tuple[str, str]]:
    """What the page opens with: each model, and the answer in one sentence."""
    return [(s.name, found[0]["headline"]) for s in data.subjects if (found := s.verdicts())]


def _judgement(subject: Subject, verdict: Document, rule: str) -> Judgement:
    answers, setting = verdict["answers"], EpisodeSpec.of_row(verdict["setting"])
    remarks = [EMBEDDED] if is_embedded(subject) else []
    for learner in dict.fromkeys(a["learner"] for a in answers):
        worse = [a["task"] for a in answers if a["learner"] == learner and untrained_beats(a)]
        if worse:
            remarks.append(f"Untrained beats trained for {learner} on {', '.join(worse)}.")
    remarks += _no_nulls(answers)
    seeds = min((a["value"]["seeds"] for a in answers), default=0)
    return Judgement(
        subject.name,
        f"{setting.in_words}, {seeds} seed{'s' * (seeds != 1)}",
        tuple((learner, text) for learner, text in verdict["said"]),
        tuple(_lines(answers)) or (("", verdict["sentences"][0]),),
        tuple(_reasons(answers)),
        tuple(remarks),
        _table(answers),
        tuple((f"{a['task']}, {a['learner']}", tuple(a["sentences"])) for a in answers),
        rule,
    )


COMPARED = {
    "null context": ", how alike that context and in-context learning are",
    "likeness to a null": ", how alike the learner and that context are",
    "random labels": ", the same learner on random labels",
    "other task": ", the same learner on another task",
}
"""What a comparison is that does not count where its control teaches something, by the control's kind.

A plugin's control has a name alone."""


def _no_nulls(answers: Sequence[Document]) -> list[str]:
    """Controls that teach something, and so do not decide where they do: a sentence for each list of tasks."""
    tasks: dict[tuple[str, str, str], list[str]] = {}
    for answer in answers:
        for comparison in answer["comparisons"]:
            if comparison["teaches"]:
                whose = comparison["control"], comparison["kind"], answer["learner"]
                tasks.setdefault(whose, []).append(answer["task"])
    alike: dict[str, dict[tuple[str, str], list[str]]] = {}
    for (control, kind, learner), where in tasks.items():
        alike.setdefault(", ".join(where), {}).setdefault((control, kind), []).append(learner)
    found = []
    for named, controls in alike.items():
        who = "; ".join(f"“{c}”{COMPARED.get(kind, '')} (for {', '.join(own)})" for (c, kind), own in controls.items())
        count = "one comparison does" if len(controls) == 1 else f"{len(controls)} comparisons do"
        found.append(
            f"On {named} something that should teach nothing did teach the model (it beat zero-shot and chance), so "
            f"{count} not count there: {who}."
        )
    return found


def is_embedded(subject: Subject) -> bool:
    return subject.model == "embedded"


def untrained_beats(answer: Document) -> bool:
    """The whole interval of trained less untrained lies below 0."""
    return any(c["control"] == "untrained" and c["difference"]["high"] < 0 for c in answer["comparisons"])


def _lines(answers: Sequence[Document]) -> list[tuple[str, str]]:
    """For each learner: how often each answer, in words."""
    found = []
    for learner in dict.fromkeys(a["learner"] for a in answers):
        own = [a["answer"] for a in answers if a["learner"] == learner]
        parts = [f"{WORDS[word]} on {own.count(word)}" for word in KINDS if word in own]
        parts[0] += f" of {len(own)} tasks"
        if len(set(own)) == 1:
            several = f"{'any of' if own[0] in DENIED else 'all'} {len(own)} tasks"
            parts = [f"{WORDS[own[0]]} on {several if len(own) > 1 else answers[0]['task']}"]
        found.append((learner, ", ".join(parts)))
    return found


def _reasons(answers: Sequence[Document]) -> list[str]:
    """Who did not learn, and where: there a likeness cannot be tested."""
    found = []
    for who, key in (
        ("In-context learning", "icl_gain"),
        *((n, n) for n in dict.fromkeys(a["learner"] for a in answers)),
    ):
        own = [a for a in answers if key in ("icl_gain", a["learner"])]
        side = "icl" if key == "icl_gain" else "gd"
        gains = {a["task"]: (a[f"{side}_gain"], a[f"{side}_learned"]) for a in own}
        flat = [task for task, (gain, learned) in gains.items() if gain is not None and not learned]
        unknown = [task for task, (gain, _) in gains.items() if gain is None]
        if flat:
            found.append(
                f"{who} does not clearly beat zero-shot and chance on {', '.join(flat)}: there is no learning to "
                "compare."
            )
        if unknown:
            found.append(f"Whether {who} beats zero-shot was not measured on {', '.join(unknown)}.")
    return found


def _matrix(data: Data) -> Matrix:
    """Every model and learner by task, in the setting of the charts."""
    tasks, rows = data.tasks, []
    for subject in data.subjects:
        answers = [a for verdict in subject.verdicts()[:1] for a in verdict["answers"]]
        for learner in dict.fromkeys(a["learner"] for a in answers):
            own = {a["task"]: a for a in answers if a["learner"] == learner}
            title = learner_title(LearnerSpec.from_facts(next(iter(own.values()))["learning"]))
            cells = tuple(_cell(own[task]) if task in own else None for task in tasks)
            rows.append((subject.name if data.side_by_side else "", title, learner, cells))
    return Matrix(tuple(tasks), tuple(rows), PRIMARY)


def _cell(answer: Document) -> tuple[Badge, Number, str, str]:
    """An answer in a word, its number, what decided it, and what the number is of where that is not the usual."""
    decided = next((c for c in answer["comparisons"] if c["control"] == answer["decided_by"]), None)
    beside = ""
    if decided is not None and answer["answer"] != "not testable":
        beside = f"{decided['control']} {short(decided['control_value']['mean'])}"
        if decided["kind"] == "beyond dilution":
            beside = f"beyond dilution {short(decided['difference']['mean'])}"
    measure = "" if answer["measure"] == PRIMARY else answer["measure"]
    return (Badge(answer["answer"], KINDS[answer["answer"]]), Number.of(answer["value"], digits=2), beside, measure)


def _table(answers: Sequence[Document]) -> Table:
    shown = [c for a in answers for c in a["comparisons"] if c["decides"] or c["control"] == PLAIN]
    controls = list(dict.fromkeys(c["control"] for c in shown))
    rows: list[list[Entry]] = []
    for a in answers:
        apart = {c["control"]: c for c in a["comparisons"]}
        differences = [Number.of(apart[name]["difference"] if name in apart else None) for name in controls]
        badge = Badge(a["answer"], KINDS[a["answer"]])
        share = Number.of(a["share_of_ceiling"])
        row: list[Entry] = [a["task"], a["learner"], badge, Number.of(a["value"]), a["measure"]]
        rows.append([*row, Number.of(a["icl_gain"]), Number.of(a["gd_gain"]), *differences, share])
    columns = ["task", "learner", "answer", "value", "of", "ICL's gain", "learner's gain"]
    return Table.build([*columns, *(f"less {name}" for name in controls), "share of ceiling"], rows)


def _chart(data: Data) -> Chart | None:
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    made: list[tuple[Subject, str, list[Series]]] = []
    for subject in data.subjects:
        found = subject.verdicts()
        # What is judged by its explained share has its chart in the section on hypotheses.
        answers = [a for a in found[0]["answers"] if a["measure"] == PRIMARY] if found else []
        for learner in dict.fromkeys(a["learner"] for a in answers):
            made.append((subject, learner, _series(subject, [a for a in answers if a["learner"] == learner])))
    if not made:
        return None
    span = span_of([series for _, _, series in made], floor=0.0)
    for subject, learner, series in made:
        title = data.title(subject, learner)
        panels.append(dots(series, subject.tasks, PRIMARY, title, span, together=True))
        for one in series:
            rows += [[subject.name, task, learner, one.name, number] for task, number in one.rows.items()]
    return Chart(
        "controls-beside",
        "Likeness beside its controls",
        f"{PRIMARY} of a learner (●) and of each of its controls (❘; the strongest is named). ◆ is the ceiling: "
        "in-context learning against itself with other demonstrations.",
        "The claim needs the dot clear to the right of every control.",
        tuple(panels),
        Table.build(["model", "task", "learner", "what", PRIMARY], rows),
        (PRIMARY, "sim_aou_mismatched", "sim_aou_to_null"),
        named=True,
    )


def _series(subject: Subject, answers: Sequence[Document]) -> list[Series]:
    learner = answers[0]["learner"]
    found = [Series(learner, subject.colour(learner), "circle", {a["task"]: Number.of(a["value"]) for a in answers})]
    names = list(dict.fromkeys(c["control"] for a in answers for c in a["comparisons"] if c["decides"]))
    controls = {
        name: {
            a["task"]: Number.of(c["control_value"])
            for a in answers
            for c in a["comparisons"]
            if c["control"] == name and c["decides"]
        }
        for name in names
    }
    for name, rows in controls.items():
        strongest = {task: name for task in rows if name == _strongest(controls, task)}
        found.append(Series(name, "@grey", "line-ns-open", rows, strongest, bars=False, kind="a control"))
    ceiling = {t: Number.of(row) for t in subject.tasks if (row := subject.get(t, CEILING.label, PRIMARY))}
    if ceiling:
        found.append(Series("ceiling", "@green", "diamond", ceiling))
    return found


def _strongest(controls: Mapping[str, Mapping[str, Number]], task: str) -> str | None:
    """The control of the highest value on a task."""
    known = [(rows[task].value, name) for name, rows in controls.items() if task in rows]
    values = [(value, name) for value, name in known if value is not None and math.isfinite(value)]
    return max(values)[1] if values else None


def _shallow(data: Data) -> Note:
    parts = []
    if any(learning.name == "probe" for subject in data.subjects for learning in subject.learnings.values()):
        parts.append("the probe")
    if any(source.has_regression for source in data.sources):
        parts.append("in-context regression below")
    parts += ["`dualscope theory`", "`dualscope regression`"]
    return Note(STRONG.format(where=f"{', '.join(parts[:-1])} and {parts[-1]}"))


def _missing(data: Data) -> list[Note]:
    found = []
    for subject in data.subjects:
        for verdict in subject.verdicts()[:1]:
            names = sorted({name for a in verdict["answers"] for name in a["missing"]})
            if names:
                add = " and ".join(f"`{HOW_TO_MEASURE[name]}`" for name in names)
                text = (
                    f"{subject.name}: these controls were not measured: {', '.join(names)}. To measure them, add {add}."
                )
                found.append(Note(text, "missing"))
    return found
