"""The figures of docs/findings.md and docs/hypotheses.md, from run folders: `python -m benchmarks.findings RUN...`.

A run folder is named as its study in benchmarks/studies is, which is where `dualscope run` puts it. findings.md is
written whole; of hypotheses.md what stands behind the line that says so. Nothing in either is typed by hand.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rivals import rivals
from benchmarks.tables import found, table
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT
from dualscope.findings.answer import PRIMARY
from dualscope.report.data import Data
from dualscope.report.subject import Subject

DOCS = Path(__file__).parents[1] / "docs"
STUDIES = Path(__file__).parent / "studies"
MARK = "<!-- From here on written by `python -m benchmarks.findings`. -->\n"
METRICS = (
    "sim_aou", "sim_aou_orthogonal", "sim_aou_centered", "sim_aou_direct", "sim_am", "sim_am_centered",
    "sim_am_delta",
)  # fmt: skip
SIGNS = {"above the controls": "▲", "not above": "▽", "inconclusive": "~", "not testable": "○"}

OPENING = """\
# Findings: two small models of real text

What the [verdict](verdict.md) says of two small models that learn in context from real text: a GPT-2 of 21M
parameters with the tasks' own label words, and a Llama of 19M parameters with label words that have nothing to do with
the task (abstract labels). They are small models: read this as an example of how the instrument is used, not as a
result about large ones. What other hypotheses explain of the same runs stands in [Hypotheses](hypotheses.md).

This page is written from the run folders, words and figures alike:

    {commands}
    python -m benchmarks.findings {folders}

In brackets: 95 % intervals over seeds x queries.
"""


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        sys.exit("usage: python -m benchmarks.findings RUN...")
    data = Data(folders)
    studies = [(folder.name, subject) for folder, subject in zip(folders, data.subjects, strict=True)]
    commands = [
        f"dualscope run benchmarks/studies/{name}.yaml --model MODELS/{subject.model} --data DATA"
        for name, subject in studies
    ]
    opening = OPENING.format(
        commands="\n    ".join(commands), folders=" ".join(f"runs/{name}" for name, _ in studies)
    )
    (DOCS / "findings.md").write_text(
        "\n".join([opening, *(_verdict_page(subject) for _, subject in studies)]), encoding="utf-8"
    )
    page = DOCS / "hypotheses.md"
    before, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        sys.exit(f"{page}: the line {MARK.strip()} is missing")
    told = [(subject, _setting(subject)) for _, subject in studies]
    page.write_text(before + MARK + "\n" + rivals(told, commands), encoding="utf-8")


def _verdict_page(subject: Subject) -> str:
    parts = [f"## {subject.model}\n", _setting(subject)]
    for verdict in subject.verdicts()[:1]:
        parts += [f"**{verdict['headline']}**\n", _answers(verdict["answers"], subject.tasks)]
        said = "\n".join(f"- `{learner}`: {text}" for learner, text in verdict["said"])
        parts += [f"Every learner in a sentence:\n\n{said}\n", *_controls(verdict["answers"], subject.tasks)]
    return "\n".join([*parts, _accuracies(subject), *_likenesses(subject)])


def _setting(subject: Subject) -> str:
    """What was measured, and where: from the run's own record."""
    record, setting = subject.source.provenance, subject.setting
    rates = {rate for rate in setting.rates.values() if rate is not None}
    return (
        f"{str(record.get('at', ''))[:10]}, {record.get('dtype', '')} on {', '.join(_devices(subject))}; "
        f"{setting.shots} shots, {setting.demo_labels} labels; {', '.join(_seeds(subject))}; "
        f"{len(subject.cells)} cells; learning rate of the gradient learners: "
        f"{', '.join(f'{rate:g}' for rate in sorted(rates))}.{_absent(subject)}\n"
    )


def _devices(subject: Subject) -> list[str]:
    """What the cells were computed on, by their own notes."""
    notes = map(subject.source.run.notes, (cell.id for cell in subject.cells))
    return sorted({one["device"].partition(":")[0] for one in notes})


def _seeds(subject: Subject) -> Iterable[str]:
    """How many of each task, of how many the study asks for; where some learners or controls have fewer, that too."""
    asked = _study(subject)["seeds"]
    for task in subject.tasks:
        learners: dict[bool, dict[str, set[int]]] = {True: {}, False: {}}
        for cell in subject.cells:
            columns = cell.columns
            if (columns["task"], columns["variant"]) == (task, "trained") and columns["role"] != "baseline":
                own = f"{columns['learner']} {columns['control']} {columns['options']}"
                learners[columns["control"] is None].setdefault(own, set()).add(columns["seed"])
        counts, under = (
            sorted({len(seeds) for seeds in learners[plain].values()}) for plain in (True, False)
        )
        fewer = f" (of some controls {under[0]})" if under and under[0] < counts[0] else ""
        yield f"{task}: {' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} of {asked} seeds{fewer}"


def _absent(subject: Subject) -> str:
    """Learners of the study as the repository has it that the run has nothing of."""
    asked = {entry if isinstance(entry, str) else entry["learner"] for entry in _study(subject)["learners"]}
    missing = sorted(asked - {cell.columns["learner"] for cell in subject.cells})
    return f" Asked for and not computed: {', '.join(f'`{name}`' for name in missing)}." if missing else ""


def _study(subject: Subject) -> dict[str, Any]:
    """As the repository has it."""
    read: dict[str, Any] = yaml.safe_load(
        (STUDIES / f"{subject.source.name}.yaml").read_text(encoding="utf-8")
    )
    return read


def _answers(answers: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> str:
    """Every learner by task: the answer, its value, and the control that decided."""
    lines = []
    for learner in dict.fromkeys(a["learner"] for a in answers):
        own = {a["task"]: a for a in answers if a["learner"] == learner}
        measure = next(iter(own.values()))["measure"]
        lines.append([f"`{learner}`", f"`{measure}`", *(_answer(own.get(task)) for task in tasks)])
    return table(["learner", "by", *tasks], lines)


def _answer(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    said = f"{SIGNS[answer['answer']]} {answer['answer']}, {found(answer['value'])}"
    decided = [c for c in answer["comparisons"] if c["control"] == answer["decided_by"]]
    if not decided or answer["answer"] == "not testable":
        return said
    (control,) = decided
    value = control["difference"] if control["kind"] == "beyond dilution" else control["control_value"]
    return f"{said}; {control['control']} {found(value)}"


def _controls(answers: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Iterable[str]:
    """What each control scores, learner by learner, for those that are judged by their attention outputs."""
    yield (
        f"What each control scores in `{PRIMARY}`, beside the learner itself. *Beyond dilution* is the learner's "
        "likeness with the direction that dilution moves along taken out. A control in brackets beats zero-shot here: "
        "it teaches, and does not decide.\n"
    )
    for task in tasks:
        own = [a for a in answers if a["task"] == task and a["measure"] == PRIMARY]
        if own:
            names = dict.fromkeys(c["control"] for a in own for c in a["comparisons"])
            lines = [["the learner itself", *(found(a["value"]) for a in own)]]
            lines += [[name, *(_control(a, name) for a in own)] for name in names]
            yield table([f"{task}", *(f"`{a['learner']}`" for a in own)], lines)


def _control(answer: Mapping[str, Any], name: str) -> str:
    for control in answer["comparisons"]:
        if control["control"] == name:
            beyond = control["kind"] == "beyond dilution"
            value = found(control["difference"] if beyond else control["control_value"])
            return f"({value})" if control["teaches"] else value
    return ""


def _accuracies(subject: Subject) -> str:
    learners = [ZERO_SHOT.label, IN_CONTEXT.label]
    learners += [name for name in subject.learners if name not in learners]
    lines = [
        [f"`{learner}`", *(found(subject.get(task, learner, "accuracy")) for task in subject.tasks)]
        for learner in learners
    ]
    return table(["accuracy, trained", *subject.tasks], lines)


def _likenesses(subject: Subject) -> Iterable[str]:
    """Every measure of attention, trained beside untrained."""
    for metric in METRICS:
        lines = []
        for learner in subject.learners:
            cells = [
                found(subject.get(task, learner, metric, variant, [IN_CONTEXT.label]))
                for task in subject.tasks
                for variant in subject.variants
            ]
            if any(cells):
                lines.append([f"`{learner}`", *cells])
        if lines:
            heads = [f"{task}, {variant}" for task in subject.tasks for variant in subject.variants]
            yield table([f"`{metric}`", *heads], lines)


if __name__ == "__main__":
    main()
