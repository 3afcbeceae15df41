"""What each hypothesis explains, in words and tables, for docs/hypotheses.md."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.tables import found, table
from dualscope.core.spec import IN_CONTEXT
from dualscope.findings.explained import NULLS, Ranking, Standing, rankings
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.subject import Subject

HEADS = [
    "", "hypothesis", "explained", "by answers to other queries", *(f"under {name}" for name in NULLS), "agreement",
    "kappa", "accuracy",
    "next token explained", "`sim_aou`", "verdict",
]  # fmt: skip

OPENING = """\
## Findings

On the two small models of [Findings](findings.md), with the same runs:

    {commands}

`explained` is the share of what the context does to the label probabilities that a learner does too, beyond a
temperature and class biases; `under` a control, what the same learner has when it is taught the wrong thing. Ceilings
may look at in-context learning itself. Below each number stands every seed's.
`sim_aou` of what acts at one layer is that of the layers above. In brackets: 95 % intervals over seeds x queries; the
verdict is that of the [rule](verdict.md).
"""


def rivals(subjects: Sequence[tuple[Subject, str]], commands: Sequence[str]) -> str:
    """Of each model, with what is said of its run: how many seeds, and what is missing."""
    parts = [OPENING.format(commands="\n    ".join(commands))]
    for subject, told in subjects:
        parts += [f"### {subject.model}, {subject.setting.demo_labels} labels\n", told]
        for ranking in rankings(subject.rows):
            if ranking.task != ALL_TASKS:
                parts += [*_words(ranking), _ranked(ranking, _verdicts(subject, ranking.task))]
        parts += [*_chosen(subject), *_weights(subject)]
    return "\n".join(parts)


def _words(ranking: Ranking) -> Iterable[str]:
    yield "**" + ranking.words()[0] + "** " + " ".join(ranking.words()[1:])
    by_name = {one.label: one for one in (*ranking.hypotheses, *ranking.ceilings)}
    plain = by_name.get("gd")
    fitted = next((one for one in ranking.ceilings if one.learning.name == "kv-distilled"), None)
    if plain is not None and fitted is not None:
        word = "more" if fitted.value > plain.value else "no more"
        yield (
            f"A change of K and V that is fitted on ICL itself (`kv-distilled`) explains {found(fitted.explained)}, "
            f"{word} than the papers' gradient descent on K and V ({found(plain.explained)})."
        )
    yield ""


def _ranked(ranking: Ranking, verdicts: Mapping[str, str]) -> str:
    lines = [_line(str(place), one, verdicts) for place, one in enumerate(ranking.hypotheses, 1)]
    lines += [_line("ceiling", one, verdicts) for one in ranking.ceilings]
    return table(HEADS, lines)


def _line(place: str, one: Standing, verdicts: Mapping[str, str]) -> list[str]:
    beside = one.beside
    return [
        place,
        f"`{one.label}`",
        found(one.explained),
        found(one.mismatched),
        *(found(one.controls.get(name)) for name in NULLS),
        *(
            found(beside.get(name))
            for name in ("agreement", "agreement_kappa", "accuracy", "explained_next_token")
        ),
        found(beside.get("sim_aou") or beside.get("sim_aou_above")),
        verdicts.get(one.label, ""),
    ]


def _verdicts(subject: Subject, task: str) -> dict[str, str]:
    """The answer on every learner, and what it was judged by."""
    return {
        answer["learner"]: f"{answer['answer']} (`{answer['measure']}`)"
        for verdict in subject.verdicts()[:1]
        for answer in verdict["answers"]
        if answer["task"] == task
    }


def _chosen(subject: Subject) -> Iterable[str]:
    lines = []
    choices = [choice for choice in subject.source.choices if choice["model"] == subject.model]
    for choice in sorted(choices, key=lambda one: (one["task"], one["learner"], str(one["options"]))):
        given = ", ".join(f"{key}={value}" for key, value in choice["options"].items())
        picked = ", ".join(f"{key} {value}" for key, value in choice["settings"].items())
        name = f"{choice['learner']}[{given}]" if given else choice["learner"]
        lines.append([choice["task"], f"`{name}`", picked, str(choice["examples"]), _accuracy(choice)])
    if lines:
        yield "What was left open, chosen on spare training examples (never on queries):\n"
        yield table(["task", "learner", "chosen", "examples", "accuracy there"], lines)


def _accuracy(choice: Mapping[str, Any]) -> str:
    """Of the chosen candidate where it was tried on most examples."""
    settings = choice["settings"]
    tried = [
        row
        for row in choice["curve"]
        if "accuracy" in row
        and set(settings) & set(row)
        and all(row[name] == value for name, value in settings.items() if name in row)
    ]
    if not tried:
        return ""
    total = sum(row.get("n", 1) for row in tried)
    return f"{sum(row['accuracy'] * row.get('n', 1) for row in tried) / total:.2f}".replace("0.", ".")


def _weights(subject: Subject) -> Iterable[str]:
    """Is the change of weights that explains in-context learning the one that descent makes?"""
    rows = [row for row in subject.rows if row["metric"] == "sim_dw" and row["variant"] == "trained"]
    rows = [row for row in rows if row["task"] != ALL_TASKS and row["reference"] != IN_CONTEXT.label]
    lines = []
    for label, reference in dict.fromkeys((row["label"], row["reference"]) for row in rows):
        cells = []
        for task in subject.tasks:
            pair = [
                found(subject.get(task, label, metric, references=[reference]))
                for metric in ("sim_dw", "sim_dw_mismatched")
            ]
            cells += pair
        lines.append([f"`{label}`", f"`{reference}`", *cells])
    if lines:
        yield "The cosine of two changes of the same weights (`sim_dw`), and that with other layers' (mismatched):\n"
        heads = [head for task in subject.tasks for head in (task, f"{task}, mismatched")]
        yield table(["change", "against", *heads], sorted(lines))
