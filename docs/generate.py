"""Writes the pages that follow from the code: python -m docs.generate."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from docs.pages import api, command_line, fields
from docs.pages.markdown import cell, code, table

HERE = Path(__file__).parent
SYMBOLS = """\
z, c and g stand for the traces of zero-shot, in-context learning and the learner; C is the set of queries
that a learner predicts correctly, D the set whose prediction differs from zero-shot's. Cosines are taken per
query (and per head, for scores), averaged over heads, then over queries, which gives a layer's value; the
mean over layers is the aggregate. Layers count from the input, from 0. A change that is exactly zero is
undefined: NaN, left out of means, and counted. So are changes that are zero by construction, up to rounding, in layer 0
of a model with relative positions: of its scores, and of its output for queries that fill its sliding window."""


def metrics() -> str:
    from dualscope.metrics import METRICS
    from dualscope.metrics.catalog import FAMILIES

    titles = {
        "prediction": "Predictions, and who changed what",
        "explained": "What is explained of in-context learning",
        "attention_output": "Attention outputs",
        "attention_map": "Attention maps",
        "demonstrations": "Attention to demonstrations",
        "single_heads": "Where attention goes, and single heads (with `--per-head`)",
        "noise": "Signal to noise",
        "weight_change": "The learning itself, and changes of weights",
        "icl_update": "W_ICL and W_FT, literally",
        "replay": "Replay: what a direction causes",
        "splice": "Splices: one run's heads in another",
        "responses_of_draws": "Responses (with `--intervention`)",
    }
    families: dict[str, list[list[str]]] = {name: [] for name in FAMILIES}
    for name in METRICS:
        metric = METRICS[name]
        family = metric.function.__module__.removeprefix("dualscope.metrics.")
        if family in families:  # a plugin's are not ours to document
            families[family].append(
                [f"`{name}`", code(metric.formula), cell(metric.about), "" if metric.default else "on request"]
            )
    parts = [
        f"### {titles[name]}\n\n{table(['metric', 'formula', 'what it says', ''], rows)}"
        for name, rows in families.items()
    ]
    return "\n\n".join(parts)


def learners() -> str:
    from dualscope.learners import LEARNERS
    from dualscope.report.page import summary

    rows = []
    for name in LEARNERS:
        kind = LEARNERS[name]
        if kind.__module__.startswith("dualscope."):
            rows.append([f"`{name}`", cell(summary(kind)), ", ".join(options(kind))])
    return table(["learner", "what it does", "options (default)"], rows)


def options(kind: Any) -> list[str]:
    return [f"`{name}` ({cell(repr(field.default))})" for name, field in kind.options.model_fields.items()]


def families() -> str:
    from dualscope.models.architecture.families import FAMILIES

    rows = [[f"`{name}`", FAMILIES[name].positions, FAMILIES[name].adapter or ""] for name in FAMILIES]
    return table(["family", "positions", "adapter"], rows)


def tasks() -> str:
    from dualscope.tasks import Task, catalog_names

    rows = []
    for name in catalog_names():
        config = Task.load(name).config
        rows.append([f"`{name}`", cell(str(config.source)), code(config.template), ", ".join(config.labels)])
    return table(["task", "source", "template", "labels"], rows)


def presets() -> str:
    import yaml

    from dualscope.studies.study import PRESETS

    rows = [[f"`{p.stem}`", cell(yaml.safe_load(p.read_text())["about"])] for p in sorted(PRESETS.glob("*.yaml"))]
    return table(["preset", "meaning"], rows)


def reference() -> str:
    parts = [
        "# Reference",
        "What every name means. This page is written from the code (`python -m docs.generate`), and a test "
        "compares them.",
        f"## Metrics\n\n{SYMBOLS}\n\n{metrics()}",
        "## Learners\n\nWhat each hypothesis claims, where it comes from and what would refute it: "
        f"[Rival hypotheses](hypotheses.md).\n\n{learners()}",
        f"## Tasks\n\n{tasks()}",
        f"## Presets\n\n{presets()}",
        "## Model families\n\nFamilies that are not listed are found by their structure where their parts have "
        f"familiar names; what passes and what is refused is said [here](add-model.md).\n\n{families()}",
    ]
    return "\n\n".join(parts) + "\n"


LIKENESS = """\
# Likeness of the whole change

The papers' measure asks whether a learner changes the model as the whole context does. Hardly any of that change is
learning, so it no longer heads the report: the [verdict](verdict.md) is about the response. For the papers' protocol
the rule stays, the same for everybody, printed beside its answers and here (this page is written from the code:
`python -m docs.generate`).

## The rule

{rule}

## The four answers

| answer | means |
|---|---|
| ▲ above the controls | the likeness is there, and nothing that should not have it has as much |
| ▽ not above | something that teaches nothing, or knows nothing, is as much like it, to within {small:g} |
| ~ inconclusive | neither can be said: too few seeds, a control not measured, or an interval that is too wide |
| ○ not testable | in-context learning or the learner did not beat zero-shot and chance: nothing to compare |

*Inconclusive* and *not testable* are answers. The report says why: which control is missing, who did not
learn.

## Why these controls

- **The untrained model.** Two changes of random weights already have something in common, because they go
  through the same architecture. If the untrained model scores as high, training has nothing to do with it.
  Where it scores higher, the report says so in words: *untrained beats trained*.
- **A random update of the same size.** Any push of the weights of that size moves attention outputs somewhere.
- **Mismatched queries.** One query's ICL change against another's GD change: a drift that all queries share
  scores here as well.
- **The learner on random labels, and on another task.** If these are as much like it, the likeness is not about what
  the demonstrations teach. Another task has other label words and texts of about the same length.
- **Position and null contexts.** In context, a query stands a thousand tokens later. What moving it there
  does, and what a context that teaches nothing does, is not learning.
- **Dilution.** In context, softmax takes weight away from the query's own tokens: with equal inputs a head's output is
  (1 - lam) z + lam demos, so its change is lam (demos - z), and merely shrinking z looks like in-context learning. So
  `dilution` shrinks it and puts nothing in its place, and what is left of a likeness when z's direction is taken out of
  both changes (`sim_aou_orthogonal`) has to be above 0.
- **A control is a null only if it teaches nothing.** Random labels, another task or a null context that
  beats zero-shot and chance on a task is marked, and does not decide there. Both are asked: where zero-shot is at .3 of
  two classes, random labels that make the model guess gain .2 and teach nothing.

A random direction, and trained embeddings with all else untrained, are shown beside them, and do not decide; nor
does plain GD, beside which the report shows every other gradient learner (`lcgd` less `gd`, paired by seed and
query).

## What the rule promises

An interval that says 95 % has to cover 95 %, also over three seeds; a study in which there is nothing has to be
called *above the controls* no more often than one in twenty, however many learners and tasks it has and however its
seeds vary; and a learner that is above all its controls must as seldom be called *not above*. `python -m
benchmarks.error_rates` makes up studies and puts them through the whole rule. Five seeds, 40 queries, seven controls;
300 studies (150 of ten learners and three tasks, 20 queries); with ten seeds the first five lines have at most .047,
and the last two .040 and .360, .110 and .947. *False above*: the learner is as like as the one under random labels in
the median draw, and far above all else. *False not above*: it is above all seven by {small:g} in the median draw.

| how seeds vary | false above, 1 learner | any of 10 learners x 3 tasks | false not above | effect of .2 found |
|---|---|---|---|---|
| normal | .023 | .000 | .037 | 1.000 |
| skewed: few high (exponential) | .010 | .020 | .043 | 1.000 |
| skewed: few low | .027 | .027 | .003 | .943 |
| one seed in five far up | .027 | .000 | .007 | 1.000 |
| one seed in five far down | .017 | .000 | .010 | .533 |
| few low, and the *mean* is 0 | .093 | .233 | .000 | .957 |
| one in five far down, and the *mean* is 0 | .307 | .733 | .000 | .957 |

The last two lines are why a decision is about most draws: there the learner *is* above in most of them (63 % and 80
%), and rare low seeds make the mean 0. Five seeds do not see them, no rule could, and the answer is true of most
draws and not of the mean. So every seed's value stands beside it, and fewer than five seeds decide nothing. The
gates: where zero-shot is at .3 of two classes and random labels lead to guessing, a learner that is no more like than
under random labels is called *above* in .037 of 300 studies (0.2: in half); a gain of .18 to .26 in each of five
seeds counts as learned (40 queries: in all of 300 studies).

The interval alone, with the spread of `realtext-21m` (gd less gd under random labels, 150 queries; standard deviation
of seeds, of queries and of both together: .025, .005, .021 on sst2, .049, .000, .031 on subj), covers .95 at 3, 5 and
10 seeds (800 draws: .948 to .954). Where queries vary ten times as much as seeds (.02, .2, .2) it covers .98, .96 and
.96, and is 28, 19 and 10 % narrower than 0.2's, which gave queries the seeds' few degrees of freedom.

An interval ends where its number does: a share at 0 and 1, a cosine at −1 and 1. It is Student's, cut there, in tables,
bars and the verdict alike, and covers what it did before, since the truth is on this side of the cut too. Of accuracies
(right and wrong answers of queries that are not equally hard, in seeds that are not equally good) it covers .93 to .99
up to an accuracy of .93 at 3, 5 and 8 seeds of 150 queries; at .98 over 40 queries it may cover .83 only, where every
answer was right and there is no spread to see.

So three seeds have honest intervals and decide nothing; five to eight do. Where they are too few, the answer is
*inconclusive*, and says how many would be. With the spread that the default study has itself, five seeds find an effect
of .1 in 71 % of three tasks.

## Does it find what is there?

A rule that never said *above* would keep its error rates too. In-context learning from other demonstrations, the
ceiling of all else, can be put before it as if it were a hypothesis:

```bash
dualscope run benchmarks/studies/again-21m.yaml --plugin benchmarks/again.py --model MODELS/realtext-21m --data DATA
```

In `realtext-21m` (16 shots, 5 seeds, 100 queries) its likeness is .99 [.98,
.99] on sst2 and .87 [.79, .95] on subj, and that less each control:

| control | sst2 | subj |
|---|---|---|
| untrained | .04 [.03, .06] | **−.07 [−.13, .00]** |
| mismatched | .07 [.06, .08] | .08 [.07, .09] |
| dilution | .39 [.37, .41] | .31 [.24, .37] |
| position | .74 [.72, .77] | .52 [.40, .63] |
| likeness to position | .74 [.72, .76] | .53 [.45, .60] |
| null context | .63 [.61, .65] | .48 [.36, .60] |
| likeness to the null context | .63 [.62, .64] | .52 [.43, .60] |
| other task | .30 [.19, .42] | .21 [.10, .32] |
| beyond dilution | .97 [.96, .98] | .80 [.68, .91] |
| random labels: not a null here, they beat zero-shot in context | .00 [.00, .00] | .00 [−.11, .11] |

So the verdict is *above the controls* on sst2, and *not above* on subj, by one control: the untrained model.
With random weights a context of the same length changes attention much alike whatever it says, so that two
draws of demonstrations are as alike there as .94 on sst2 and .93 on subj (five draws of weights). The trained
model's changes depend on what the demonstrations say, on subj more than on sst2 (.87 and .99), and where they
do, being less alike than in an untrained model is no sign of less learning. By the letter of the rule not even
in-context learning itself then stands above every control: *not above* says that a likeness is not evidence,
not that there is nothing.

## The ceiling

In-context learning with other demonstrations of the same task is not the same change either.
`in-context/redraw` measures that, and the report gives a learner's likeness as a share of it.

## What it is not

The verdict is about the strong claim, layer by layer, on this model, these tasks and these seeds. It does not
speak of the shallow claim ([regression](regression.md), [theory](theory/index.md)). And a model that
was trained to learn in context, like the embedded one, says nothing about large language models.
"""


def likeness() -> str:
    from dualscope.findings.answer import RULE, SMALL

    quoted = "\n".join(f"> {line}\n>" for line in RULE.split("\n")).removesuffix("\n>")
    return LIKENESS.format(rule=quoted, small=SMALL)


PAGES: dict[str, Callable[[], str]] = {
    "reference.md": reference,
    "likeness.md": likeness,
    "fields.md": fields.page,
    "command-line.md": command_line.page,
    "api/index.md": api.contents,
    **{f"api/{page}.md": partial(api.subject, page) for page in api.SUBJECTS},
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(make(), encoding="utf-8")
        print(f"wrote {HERE.name}/{name}")
