"""Is in-context learning like gradient descent here? The rule, as a function of the evidence. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dualscope.core import words
from dualscope.core.estimate import Estimate, Interval
from dualscope.core.learning import IN_CONTEXT, PLAIN, ZERO_SHOT, Learning
from dualscope.core.statistics import COSINE, Bounds, holm
from dualscope.findings.answer import (
    ALPHA,
    EXPLAINED,
    PRIMARY,
    SEEDS,
    AgainstControl,
    Answer,
    ControlKind,
    Word,
    beats,
    sentences_of,
)
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.findings.headline import headline, sentence
from dualscope.findings.rule import RULE

CEILING = IN_CONTEXT.under("redraw")
ALWAYS: dict[str, ControlKind] = {"zero-shot-offset": "position", "dilution": "dilution"}
"""Nulls that always decide, since they hold no demonstration: what people call them, by the learner's name."""
WRONGLY_TAUGHT: dict[words.Control, ControlKind] = {
    "random-labels": "random labels",
    "other-task": "other task",
}


@dataclass(frozen=True)
class Verdict:
    answers: tuple[Answer, ...]
    sentences: tuple[str, ...]
    headline: str = ""
    """The answer in one sentence."""
    said: tuple[tuple[str, str], ...] = ()
    """Every learner, and the sentence on it."""
    rule: str = RULE

    def __getitem__(self, key: tuple[str, str]) -> Answer:
        """The answer of (task, learner)."""
        return next(answer for answer in self.answers if (answer.task, answer.learner) == key)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = asdict(self)
        for answer, plain in zip(self.answers, found["answers"], strict=True):
            plain["learning"] = answer.learning.facts
            decided = answer.decided_by
            plain["decided_by"] = None if decided is None else decided.control
            for comparison, entry in zip(answer.comparisons, plain["comparisons"], strict=True):
                entry["outcome"] = comparison.outcome
        return found


def verdict(evidence: Evidence) -> Verdict:
    """The answers for every task and every hypothesis that was compared with in-context learning."""
    judge = _Judge(evidence)
    drafts = [
        judge.draft(task, learning, measure)
        for task in evidence.tasks
        for learning in evidence.learnings(task)
        if evidence.roles.get(learning) == "hypothesis"
        and (measure := _measure(evidence, task, learning)) is not None
    ]
    answers = tuple(_decide(draft) for draft in _corrected(drafts))
    learners = dict.fromkeys(answer.learner for answer in answers)
    said = tuple((name, sentence([a for a in answers if a.learner == name])) for name in learners)
    return Verdict(answers, tuple(_summary(answers)), headline(answers), said)


def _measure(evidence: Evidence, task: str, learning: Learning) -> str | None:
    """What a learner is judged by: the attention outputs of all layers where it has them."""
    wanted = (PRIMARY, EXPLAINED)
    return next((m for m in wanted if EvidenceKey(task, "trained", learning, m) in evidence), None)


@dataclass(frozen=True)
class ControlEvidence:
    """What a learner is compared with, and whether that decides."""

    name: str
    key: EvidenceKey
    kind: ControlKind = "shown"
    taught: Learning | None = None  # who must not have learned anything for it to be a null
    always: bool = True  # it decides whether or not it learned

    @property
    def decides(self) -> bool:
        return self.kind != "shown"


class _Judge:
    """Computes the numbers."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        # What the smallest of the tasks' p-values has to be below for Holm: with seeds for that, all can be settled.
        self.alpha = ALPHA / max(1, len(evidence.tasks))

    def draft(self, task: str, learning: Learning, measure: str) -> Answer:
        own = EvidenceKey(task, "trained", learning, measure)
        comparisons = tuple(
            self._compare(control, own)
            for control in self._controls(own)
            if control.key in self.evidence and self._overlap(own, control.key)
        )
        return Answer(
            task,
            learning,
            self._name(task, learning),
            "inconclusive",
            Estimate.of(*self.evidence.pair(own)).interval.within(_bounds(measure)),
            self._gain(task, IN_CONTEXT),
            self._gain(task, learning),
            (*comparisons, *self._beyond_dilution(own)),
            tuple(_missing(comparisons, measure)),
            self._share(own, own._replace(learning=CEILING)),
            (),
            measure,
        )

    def _name(self, task: str, learning: Learning) -> str:
        """The learner's label, with its rate where it was run at several."""
        twins = [other for other in self.evidence.learnings(task) if other.label == learning.label]
        return learning.label if len(twins) < 2 else f"{learning.label} lr={learning.rate:g}"

    def _controls(self, own: EvidenceKey) -> Iterator[ControlEvidence]:
        task, learning, like = own.task, own.learning, own.metric == PRIMARY
        yield ControlEvidence("untrained", own._replace(variant="untrained"), "untrained")
        random_update = own._replace(learning=learning.under("random-update"))
        yield ControlEvidence("random-update", random_update, "random-update")
        if like:
            yield ControlEvidence("mismatched", own._replace(metric="sim_aou_mismatched"), "mismatched")
        for null in self._nulls(task):
            always = ALWAYS.get(null.name)
            kind, name = always or "null context", always or f"{null.label} itself"
            yield ControlEvidence(name, own._replace(learning=null), kind, null, always is not None)
        for null in self.evidence.references(task, learning, "sim_aou_to_null") if like else ():
            name = f"likeness to {ALWAYS.get(null.name) or null.label}"
            key = own._replace(metric="sim_aou_to_null", reference=null)
            yield ControlEvidence(name, key, "likeness to a null", null, null.name in ALWAYS)
        for control, kind in WRONGLY_TAUGHT.items():
            under = learning.under(control)
            yield ControlEvidence(control, own._replace(learning=under), kind, under, always=False)
        if like:
            yield ControlEvidence("random direction", own._replace(metric="sim_aou_random"))
        yield ControlEvidence("trained-embeddings", own._replace(variant="trained-embeddings"))
        plain = Learning(PLAIN, rate=learning.rate)
        # Is this learner more like ICL than plain GD? One of some layers has another mean.
        if plain != learning and "layers" not in learning.settings:
            yield ControlEvidence(PLAIN, own._replace(learning=plain))

    def _nulls(self, task: str) -> list[Learning]:
        """Learners of this task that have nothing to learn from, under no control."""
        here = self.evidence.learnings(task)
        return [who for who in here if self.evidence.roles.get(who) == "null" and who.control is None]

    def _overlap(self, *keys: EvidenceKey) -> bool:
        left, right = self.evidence.pair(*keys)
        return bool((np.isfinite(left) & np.isfinite(right)).any())

    def _compare(self, control: ControlEvidence, own: EvidenceKey) -> AgainstControl:
        left, right = self.evidence.pair(own, control.key)
        apart = Estimate.of(left - right)
        teaches = (
            control.taught is not None and not control.always and self._teaches(own.task, control.taught)
        )
        return AgainstControl(
            control.name,
            control.decides and not teaches,
            Estimate.of(right).interval.within(_bounds(control.key.metric)),
            apart.interval,
            apart.p,
            apart.p,
            apart.seeds_needed(self.alpha),
            control.kind,
            teaches,
        )

    def _teaches(self, task: str, learning: Learning) -> bool:
        """A control is a null only if it teaches nothing."""
        return beats(self._gain(task, learning))

    def _beyond_dilution(self, own: EvidenceKey) -> Iterator[AgainstControl]:
        key = own._replace(metric="sim_aou_orthogonal")
        if own.metric == PRIMARY and key in self.evidence:
            left = Estimate.of(*self.evidence.pair(key))
            if left.seeds:
                nothing = Interval(0.0, 0.0, 0.0, left.seeds, left.queries)
                needed, name = left.seeds_needed(self.alpha), "beyond dilution"
                likeness = left.interval.within(_bounds(key.metric))
                yield AgainstControl(name, True, nothing, likeness, left.p, left.p, needed, "beyond dilution")

    def _gain(self, task: str, learning: Learning) -> Interval | None:
        learned = self.evidence.learned(learning)
        keys = [EvidenceKey(task, "trained", who, learned) for who in (learning, ZERO_SHOT)]
        if not all(key in self.evidence for key in keys):
            return None
        after, before = self.evidence.pair(*keys)
        return Estimate.of(after - before).interval.within(COSINE) if after.size else None

    def _share(self, own: EvidenceKey, ceiling: EvidenceKey) -> Interval | None:
        # Layers that do not learn are left out of a learner's mean.
        some_layers = "layers" in own.learning.settings
        if some_layers or ceiling not in self.evidence or not self._overlap(own, ceiling):
            return None
        left, right = self.evidence.pair(own, ceiling)
        return Estimate.of_ratio(left, right).interval


def _bounds(metric: str) -> Bounds:
    """What is compared is a cosine, or a share that can be as far below 0 as it likes."""
    return (-math.inf, 1.0) if metric == EXPLAINED else COSINE


def _missing(comparisons: Sequence[AgainstControl], measure: str) -> Iterator[str]:
    found = {comparison.control for comparison in comparisons if comparison.decides}
    if "untrained" not in found and measure == PRIMARY:
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
    if not (draft.value.seeds and beats(draft.icl_gain) and beats(draft.gd_gain)):
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
        yield "No learner was compared with in-context learning, so there is no answer."
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
