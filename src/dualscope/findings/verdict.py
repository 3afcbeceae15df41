"""Likeness of the whole change: is a learner more like in-context learning than its controls? No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from dualscope.core import words
from dualscope.core.canonical import fingerprint
from dualscope.core.estimate import Interval
from dualscope.core.spec import IN_CONTEXT, PLAIN, ZERO_SHOT, CellSpec, LearnerSpec
from dualscope.core.statistics import COSINE, SHARE, Bounds
from dualscope.findings.answer import (
    ALPHA,
    EXPLAINED,
    PRIMARY,
    RULE,
    SEEDS,
    SHOWN,
    SMALL,
    AgainstControl,
    Answer,
    Word,
    described,
    sentences_of,
)
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.findings.headline import headline, sentence
from dualscope.studies.run_folder.storage import RunFolder

CEILING = IN_CONTEXT.under("redraw")


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
            plain["icl_learned"], plain["gd_learned"] = answer.icl_learned, answer.gd_learned
            for comparison, entry in zip(answer.comparisons, plain["comparisons"], strict=True):
                entry["outcome"] = comparison.outcome
        return found


def verdict(evidence: Evidence) -> Verdict:
    """The answers for every task and every hypothesis that was compared with in-context learning."""
    asked = [
        (task, learning, measure)
        for task in evidence.tasks
        for learning in evidence.learnings(task)
        if evidence.roles.get(learning) == "hypothesis" and (measure := _measure(evidence, task, learning)) is not None
    ]
    judge = _Judge(evidence, len(asked))
    drafts = [judge.draft(*one) for one in asked]
    answers = tuple(_decide(draft) for draft in _corrected(drafts))
    learners = dict.fromkeys(answer.learner for answer in answers)
    said = tuple((name, sentence([a for a in answers if a.learner == name])) for name in learners)
    return Verdict(answers, tuple(_summary(answers)), headline(answers), said)


def _measure(evidence: Evidence, task: str, learning: LearnerSpec) -> str | None:
    """What a learner is judged by: the attention outputs of all layers where it has them."""
    wanted = (PRIMARY, EXPLAINED)
    return next((m for m in wanted if EvidenceKey(task, "trained", learning, m) in evidence), None)


def wrongly_taught() -> dict[words.Control, str]:
    """Controls that teach something wrong: each takes away what it says, unless its demonstrations teach after all."""
    from dualscope.learners import COMBINATORS

    kinds = {name: COMBINATORS[name].decides for name in get_args(words.Control)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


@dataclass(frozen=True)
class ControlEvidence:
    """What a learner is compared with, and whether that decides."""

    name: str
    key: EvidenceKey
    kind: str = SHOWN
    taught: LearnerSpec | None = None  # who must not have learned anything for it to be a null
    always: bool = True  # it decides whether or not it learned

    @property
    def decides(self) -> bool:
        return self.kind != SHOWN


class _Judge:
    """Computes the numbers."""

    def __init__(self, evidence: Evidence, asked: int) -> None:
        self.evidence = evidence
        # What a p-value has to be below where all that is asked can be tested.
        self.alpha = ALPHA / max(1, asked)

    def draft(self, task: str, learning: LearnerSpec, measure: str) -> Answer:
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
            self.evidence.estimate(own).interval.within(_bounds(measure)),
            self._gain(task, IN_CONTEXT),
            self._gain(task, learning),
            (*comparisons, *self._beyond_dilution(own)),
            tuple(_missing(comparisons, measure)),
            self._share(own, own._replace(learning=CEILING)),
            (),
            measure,
            self._accuracy(task, IN_CONTEXT),
            self._accuracy(task, learning),
            self.evidence.chance.get(task, 0.0),
        )

    def _name(self, task: str, learning: LearnerSpec) -> str:
        """The learner's label, with its rate where it was run at several."""
        twins = [other for other in self.evidence.learnings(task) if other.label == learning.label]
        return learning.label if len(twins) < 2 else f"{learning.label} lr={learning.lr:g}"

    def _controls(self, own: EvidenceKey) -> Iterator[ControlEvidence]:
        task, learning, like = own.task, own.learning, own.metric == PRIMARY
        yield ControlEvidence("untrained", own._replace(variant="untrained"), "untrained")
        random_update = own._replace(learning=learning.under("random-update"))
        yield ControlEvidence("random-update", random_update, "random-update")
        if like:
            yield ControlEvidence("mismatched", own._replace(metric="sim_aou_mismatched"), "mismatched")
        for null in self._nulls(task):
            always = described(null.name).decides
            kind, name = always or "null context", always or f"{null.label} itself"
            yield ControlEvidence(name, own._replace(learning=null), kind, null, always is not None)
        for null in self.evidence.references(task, learning, "sim_aou_to_null") if like else ():
            always = described(null.name).decides
            key = own._replace(metric="sim_aou_to_null", reference=null)
            name = f"likeness to {always or null.label}"
            yield ControlEvidence(name, key, "likeness to a null", null, always is not None)
        for control, kind in wrongly_taught().items():
            under = learning.under(control)
            yield ControlEvidence(control, own._replace(learning=under), kind, under, always=False)
        if like:
            yield ControlEvidence("random direction", own._replace(metric="sim_aou_random"))
        yield ControlEvidence("trained-embeddings", own._replace(variant="trained-embeddings"))
        plain = LearnerSpec(PLAIN, lr=learning.lr)
        # Is this learner more like ICL than plain GD? One of some layers has another mean.
        if plain != learning and "layers" not in learning.settings:
            yield ControlEvidence(PLAIN, own._replace(learning=plain))

    def _nulls(self, task: str) -> list[LearnerSpec]:
        """Learners of this task that have nothing to learn from, under no control."""
        here = self.evidence.learnings(task)
        return [who for who in here if self.evidence.roles.get(who) == "null" and who.control is None]

    def _overlap(self, own: EvidenceKey, other: EvidenceKey) -> bool:
        return self.evidence.apart(own, other).seeds > 0

    def _compare(self, control: ControlEvidence, own: EvidenceKey) -> AgainstControl:
        apart = self.evidence.apart(own, control.key)
        teaches = control.taught is not None and not control.always and self._teaches(own.task, control.taught)
        return AgainstControl(
            control.name,
            control.decides and not teaches,
            self.evidence.estimate(control.key).interval.within(_bounds(control.key.metric)),
            apart.interval,
            apart.p,
            apart.p,
            apart.p_of(SMALL),
            _at_least(apart.seeds_needed(self.alpha)),
            control.kind,
            teaches,
        )

    def _teaches(self, task: str, learning: LearnerSpec) -> bool:
        """A control is a null only if it teaches nothing.

        That is corrected for all that is asked too: of many controls that teach nothing, one would seem to teach and be
        left out, and its learner would be above all that is left.
        """
        metric = self.evidence.learned(learning)
        after, before = (EvidenceKey(task, "trained", who, metric) for who in (learning, ZERO_SHOT))
        if not (after in self.evidence and before in self.evidence):
            return False
        gain, accuracy = self.evidence.apart(after, before), self.evidence.estimate(after)
        chance = self.evidence.chance.get(task, 0.0)
        clear = gain.p < self.alpha and accuracy.p_of(chance) < self.alpha
        return clear and gain.mean > 0 and accuracy.mean > chance

    def _beyond_dilution(self, own: EvidenceKey) -> Iterator[AgainstControl]:
        key = own._replace(metric="sim_aou_orthogonal")
        if own.metric == PRIMARY and key in self.evidence:
            left = self.evidence.estimate(key)
            if left.seeds:
                nothing = Interval(0.0, 0.0, 0.0, left.seeds, left.queries)
                likeness = left.interval.within(_bounds(key.metric))
                needed = _at_least(left.seeds_needed(self.alpha))
                p, below = left.p, left.p_of(SMALL)
                yield AgainstControl("beyond dilution", True, nothing, likeness, p, p, below, needed, "beyond dilution")

    def _gain(self, task: str, learning: LearnerSpec) -> Interval | None:
        metric = self.evidence.learned(learning)
        after, before = (EvidenceKey(task, "trained", who, metric) for who in (learning, ZERO_SHOT))
        if not (after in self.evidence and before in self.evidence):
            return None
        found = self.evidence.apart(after, before)
        return found.interval.within(COSINE) if found.seeds else None

    def _accuracy(self, task: str, learning: LearnerSpec) -> Interval | None:
        key = EvidenceKey(task, "trained", learning, self.evidence.learned(learning))
        return self.evidence.estimate(key).interval.within(SHARE) if key in self.evidence else None

    def _share(self, own: EvidenceKey, ceiling: EvidenceKey) -> Interval | None:
        # Layers that do not learn are left out of a learner's mean.
        some_layers = "layers" in own.learning.settings
        if some_layers or ceiling not in self.evidence or not self._overlap(own, ceiling):
            return None
        return self.evidence.ratio(own, ceiling).interval


def _bounds(metric: str) -> Bounds:
    """What is compared is a cosine, or a share that can be as far below 0 as it likes."""
    return (-math.inf, 1.0) if metric == EXPLAINED else COSINE


def _missing(comparisons: Sequence[AgainstControl], measure: str) -> Iterator[str]:
    found = {comparison.control for comparison in comparisons if comparison.decides}
    if "untrained" not in found and measure == PRIMARY:
        yield "untrained"
    if not found - {"untrained"}:
        yield "null controls"


def _at_least(seeds: int | None) -> int | None:
    """Fewer than `SEEDS` never decide."""
    return None if seeds is None else max(seeds, SEEDS)


def _corrected(drafts: Sequence[Answer]) -> list[Answer]:
    """Bonferroni's, over all learners, rates and tasks that can be tested.

    A learner is above its controls only if it is above every one, so their number costs nothing there. It is not above
    them if it is not above some one: there p-values are multiplied by the number of controls as well.
    """
    judged = max(1, sum(draft.is_testable for draft in drafts))

    def corrected(comparison: AgainstControl, controls: int) -> AgainstControl:
        p, below = comparison.p, comparison.p_below
        return replace(comparison, p_corrected=min(1.0, judged * p), p_below=min(1.0, judged * controls * below))

    return [
        replace(draft, comparisons=tuple(corrected(c, max(1, sum(map(_decides, found)))) for c in found))
        for draft in drafts
        for found in [draft.comparisons]
    ]


def _decides(comparison: AgainstControl) -> bool:
    return comparison.decides


def _decide(draft: Answer) -> Answer:
    deciding = [c for c in draft.comparisons if c.decides]
    answer: Word
    if not draft.is_testable:
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


# The verdict on a run, kept as verdict.json so that a finished run can repeat it at once.


FILE = "verdict.json"


def stored_cells(run: RunFolder, cells: Sequence[CellSpec]) -> dict[str, CellSpec]:
    """Those of a study's cells that are there, by their ids."""
    stored = run.stored()
    return {cell.id: cell for cell in cells if cell.id in stored}


def verdicts(run: RunFolder, cells: Mapping[str, CellSpec], keep: bool = True) -> list[dict[str, Any]]:
    """For each model and setting (shots, labels): the setting, the sentences, and the answers in full.

    What is stored is taken where it is of the same cells; with ``keep`` what is reached anew is stored.
    """
    stamp = _stamp(cells)
    known = run.recall_verdicts(FILE, stamp)
    if known is not None:
        return known
    by_model: dict[str, dict[str, CellSpec]] = {}
    for name, cell in cells.items():
        if _is_evidence(cell):
            by_model.setdefault(cell.episode.model.name, {})[name] = cell
    reached = []
    for own in by_model.values():  # a verdict is on one model: the tables of others need not be in memory
        pairs = [(cell, run.queries(name)) for name, cell in own.items()]
        reached += [
            (repr(setting), {"setting": setting.setting_columns, **verdict(evidence).to_dict()})
            for setting, evidence in Evidence.collect(pairs).items()
        ]
    found = [answer for _, answer in sorted(reached, key=lambda pair: pair[0])]
    if keep:
        run.keep_verdicts(FILE, stamp, found)
    return found


def _stamp(cells: Iterable[str]) -> str:
    """What a stored verdict is of: these cells, and this rule."""
    return fingerprint([RULE, *sorted(cells)])


def _is_evidence(cell: CellSpec) -> bool:
    """Learners that are compared with something else than in-context learning answer another question."""
    return cell.reference in (None, IN_CONTEXT)
