"""Is in-context learning like gradient descent here? The rule, as a function of the evidence. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from dualscope.core.companions import PLAIN
from dualscope.core.learning import IN_CONTEXT, ZERO_SHOT, Learning
from dualscope.core.statistics import Crossed, Interval, difference, holm, sign_flip
from dualscope.findings.answer import (
    ALPHA,
    PRIMARY,
    SEEDS,
    SMALL,
    Answer,
    Comparison,
    Word,
    beats,
    sentences_of,
)
from dualscope.findings.evidence import Evidence, Key

RESAMPLES = 2000
CEILING = IN_CONTEXT.under("redraw")

RULE = f"""\
The question is the strong, per-layer correspondence: does gradient descent change the attention outputs as the \
demonstrations in the context do? It is asked of every task and gradient learner by itself, on the trained model.
1. The measure is {PRIMARY}: the cosine of the two changes of the attention output, mean over layers and queries.
2. Not testable: unless in-context learning and the gradient learner each beat zero-shot in accuracy, with an interval \
that excludes 0, there is no learning to compare. (Accuracy is against what the demonstrations teach: where their \
labels are flipped, against the flipped labels; where they are random, against the right ones.)
3. Controls that decide: the untrained model (the same learner, weights drawn anew); a random update of the size of \
GD's; mismatched queries (one query's ICL change against another's GD change); GD on random labels and on another \
task; the query moved to ICL's positions without a context, and contexts that teach nothing, in place of ICL. \
Differences are paired by seed and query.
4. Above the controls: against every deciding control that was measured, the difference is above 0 with an interval \
that excludes 0 and a p-value below {ALPHA:g} after Holm's correction over tasks; the untrained model and at least one \
other control must have been measured, over at least {SEEDS} seeds.
5. Not above: against some deciding control, the whole interval of the difference lies below {SMALL:g}.
6. Inconclusive: anything else.
Intervals are 95 % bootstrap intervals that resample seeds and queries; with few seeds they are too narrow, so the \
number of seeds stands beside each, and beside it the p-value of a sign-flip test over seeds, which cannot fall below \
2^(1 - seeds), whatever the data.\
"""


@dataclass(frozen=True)
class Verdict:
    answers: tuple[Answer, ...]
    sentences: tuple[str, ...]
    rule: str = RULE

    def __getitem__(self, key: tuple[str, str]) -> Answer:
        """The answer of (task, learner)."""
        return next(answer for answer in self.answers if (answer.task, answer.learner) == key)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = asdict(self)
        for answer, plain in zip(self.answers, found["answers"], strict=True):
            plain["learning"] = answer.learning.facts
            for comparison, entry in zip(answer.comparisons, plain["comparisons"], strict=True):
                entry["outcome"] = comparison.outcome
        return found


def verdict(evidence: Evidence, seed: int = 0) -> Verdict:
    """The answers for every task and every hypothesis that was compared with in-context learning."""
    judge = _Judge(evidence, seed)
    drafts = [
        judge.draft(task, learning)
        for task in evidence.tasks
        for learning in evidence.learnings(task)
        if evidence.roles.get(learning) == "hypothesis"
        and Key(task, "trained", learning, PRIMARY) in evidence
    ]
    answers = tuple(_decide(draft) for draft in _corrected(drafts))
    return Verdict(answers, tuple(_summary(answers)))


class _Judge:
    """Computes the numbers; the resamples of a shape are drawn once."""

    def __init__(self, evidence: Evidence, seed: int) -> None:
        self.evidence = evidence
        self.crossed = cache(lambda seeds, queries: Crossed(seeds, queries, RESAMPLES, seed))

    def draft(self, task: str, learning: Learning) -> Answer:
        own = Key(task, "trained", learning, PRIMARY)
        comparisons = tuple(
            self._compare(name, own, key, decides)
            for name, key, decides in self._controls(task, learning)
            if key in self.evidence and self._overlap(own, key)
        )
        return Answer(
            task,
            learning,
            self._name(task, learning),
            "inconclusive",
            self._interval(*self.evidence.pair(own)),
            self._gain(task, IN_CONTEXT),
            self._gain(task, learning),
            comparisons,
            tuple(_missing(comparisons)),
            self._share(own, Key(task, "trained", CEILING, PRIMARY)),
            (),
        )

    def _name(self, task: str, learning: Learning) -> str:
        """The learner's label, with its rate where it was run at several."""
        twins = [other for other in self.evidence.learnings(task) if other.label == learning.label]
        return learning.label if len(twins) < 2 else f"{learning.label} lr={learning.rate:g}"

    def _controls(self, task: str, learning: Learning) -> Iterator[tuple[str, Key, bool]]:
        """Name, where its values are, and whether it decides; the others are shown."""
        own = Key(task, "trained", learning, PRIMARY)
        yield "untrained", own._replace(variant="untrained"), True
        yield "random-update", own._replace(learning=learning.under("random-update")), True
        yield "mismatched", own._replace(metric="sim_aou_mismatched"), True
        for null in self.evidence.references(task, learning, "sim_aou_to_null"):
            yield null.label, own._replace(metric="sim_aou_to_null", reference=null), True
        yield "random-labels", own._replace(learning=learning.under("random-labels")), True
        yield "other-task", own._replace(learning=learning.under("other-task")), True
        yield "random direction", own._replace(metric="sim_aou_random"), False
        yield "trained-embeddings", own._replace(variant="trained-embeddings"), False
        plain = Learning(PLAIN, rate=learning.rate)
        # Is this learner more like ICL than plain GD? One of some layers has another mean.
        if plain != learning and "layers" not in learning.settings:
            yield PLAIN, own._replace(learning=plain), False

    def _overlap(self, *keys: Key) -> bool:
        left, right = self.evidence.pair(*keys)
        return bool((np.isfinite(left) & np.isfinite(right)).any())

    def _interval(self, values: np.ndarray) -> Interval:
        return self.crossed(*values.shape).interval(values)

    def _compare(self, name: str, own: Key, control: Key, decides: bool) -> Comparison:
        left, right = self.evidence.pair(own, control)
        apart = difference(left, right)
        interval, p = self.crossed(*apart.shape).interval_and_p(apart)
        return Comparison(name, decides, self._interval(right), interval, p, p, sign_flip(apart))

    def _gain(self, task: str, learning: Learning) -> Interval | None:
        learned = self.evidence.learned(learning)
        keys = [Key(task, "trained", who, learned) for who in (learning, ZERO_SHOT)]
        if not all(key in self.evidence for key in keys):
            return None
        after, before = self.evidence.pair(*keys)
        return self._interval(difference(after, before)) if after.size else None

    def _share(self, own: Key, ceiling: Key) -> Interval | None:
        # Layers that do not learn are left out of a learner's mean.
        if (
            "layers" in own.learning.settings
            or ceiling not in self.evidence
            or not self._overlap(own, ceiling)
        ):
            return None
        left, right = self.evidence.pair(own, ceiling)
        return self.crossed(*left.shape).ratio(left, right)


def _missing(comparisons: Sequence[Comparison]) -> Iterator[str]:
    found = {comparison.control for comparison in comparisons if comparison.decides}
    if "untrained" not in found:
        yield "untrained"
    if not found - {"untrained"}:
        yield "null controls"


def _corrected(drafts: Sequence[Answer]) -> list[Answer]:
    """Holm over the tasks, for each learner and control."""
    asked: dict[tuple[str, str], dict[str, float]] = {}
    for draft in drafts:
        for comparison in draft.comparisons:
            asked.setdefault((draft.learner, comparison.control), {})[draft.task] = comparison.p
    adjusted = {key: holm(by_task) for key, by_task in asked.items()}
    return [
        replace(
            draft,
            comparisons=tuple(
                replace(c, p_holm=adjusted[draft.learner, c.control][draft.task]) for c in draft.comparisons
            ),
        )
        for draft in drafts
    ]


def _decide(draft: Answer) -> Answer:
    deciding = [c for c in draft.comparisons if c.decides]
    answer: Word
    if not (beats(draft.icl_gain) and beats(draft.gd_gain)):
        answer = "not testable"
    elif min(found.seeds for found in (draft.value, draft.icl_gain, draft.gd_gain) if found) < SEEDS:
        answer = "inconclusive"
    elif any(c.outcome == "not above" for c in deciding):
        answer = "not above"
    elif draft.missing or not all(c.outcome == "above" for c in deciding):
        answer = "inconclusive"
    else:
        answer = "above the controls"
    decided = replace(draft, answer=answer)
    return replace(decided, sentences=tuple(sentences_of(decided)))


def _summary(answers: Sequence[Answer]) -> Iterator[str]:
    if not answers:
        yield "No gradient learner was compared with in-context learning, so there is no answer."
    for learner in dict.fromkeys(answer.learner for answer in answers):
        own = [answer for answer in answers if answer.learner == learner]
        counts = [
            f"{word} on {', '.join(a.task for a in own if a.answer == word)}"
            for word in ("above the controls", "not above", "inconclusive", "not testable")
            if any(a.answer == word for a in own)
        ]
        yield f"{learner}: {'; '.join(counts)}."
        worse = [a.task for a in own if any(c.control == "untrained" and c.beaten for c in a.comparisons)]
        if worse:
            yield f"Untrained beats trained for {learner} on {', '.join(worse)}."
