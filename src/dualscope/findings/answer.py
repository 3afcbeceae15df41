"""What can be said of one learner on one task: the comparisons, the answer, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dualscope.core.estimate import Interval
from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import sign_test

SHOWN = "shown"  # the kind of a control that decides nothing
PRIMARY = "sim_aou"
EXPLAINED = "explained"  # of learners that have no attention outputs of every layer to compare
ALPHA = 0.05
SMALL = 0.02
SEEDS = 5  # with fewer, not even all of them together say what most draws show

ComparisonOutcome = Literal["above", "not above", "unclear"]
Word = Literal["above the controls", "not above", "not testable", "inconclusive"]


@dataclass(frozen=True)
class AgainstControl:
    """The learner's similarity beside a control's."""

    control: str
    decides: bool
    control_value: Interval
    difference: Interval
    p: float
    p_corrected: float
    """After the correction for all learners and tasks that are judged."""
    p_below: float = 1.0
    """Of a difference as small as this where the truth is `SMALL`, after the correction for the controls too."""
    seeds_needed: int | None = None
    """How many seeds would show a difference of this size; None: no number that anybody would run."""
    kind: str = SHOWN
    """What the control takes away from the learner, as those say that decide."""
    teaches: bool = False
    """A control that beats zero-shot here: it is no null, and does not decide."""

    @property
    def outcome(self) -> ComparisonOutcome:
        if self.difference.mean < SMALL and self.p_below < ALPHA and _mostly(self.difference, below=SMALL):
            return "not above"
        above = self.difference.mean > 0 and self.p_corrected < ALPHA and _mostly(self.difference)
        return "above" if above else "unclear"

    @property
    def beaten(self) -> bool:
        """Does the control score higher than the learner, beyond its interval?"""
        return self.difference.high < 0


def _mostly(difference: Interval, below: float | None = None) -> bool:
    """Whether the seeds show that most draws are above 0, or below a number: a mean of skewed seeds need not.

    Fewer than `SEEDS` seeds never do.
    """
    values = difference.each if below is None else [below - value for value in difference.each]
    return sign_test(values) < ALPHA


@dataclass(frozen=True)
class Answer:
    """What can be said of one learner on one task."""

    task: str
    learning: LearnerSpec
    learner: str  # how people call it here
    answer: Word
    value: Interval
    icl_gain: Interval | None
    gd_gain: Interval | None
    comparisons: tuple[AgainstControl, ...]
    missing: tuple[str, ...]
    share_of_ceiling: Interval | None
    sentences: tuple[str, ...]
    measure: str = PRIMARY
    """What its values are of: `sim_aou`, or `explained` where there are no attention outputs to compare."""
    icl_accuracy: Interval | None = None
    gd_accuracy: Interval | None = None
    chance: float = 0.0
    """What guessing gets right."""

    @property
    def icl_learned(self) -> bool:
        return learned(self.icl_gain, self.icl_accuracy, self.chance)

    @property
    def gd_learned(self) -> bool:
        return learned(self.gd_gain, self.gd_accuracy, self.chance)

    @property
    def is_testable(self) -> bool:
        """Whether there is a value, and learning on both sides to compare."""
        return bool(self.value.seeds and self.icl_learned and self.gd_learned)

    @property
    def decided_by(self) -> AgainstControl | None:
        """The deciding control that stands most in the learner's way, or comes nearest to it.

        Where the answer is "not above", one of those that made it so.
        """
        deciding = [c for c in self.comparisons if c.decides and c.difference.seeds]
        if self.answer == "not above":
            deciding = [c for c in deciding if c.outcome == "not above"]
        return min(deciding, key=lambda c: c.difference.mean, default=None)


HOW_TO_MEASURE = {
    "untrained": "--variant trained --variant untrained",
    "null controls": "--learner null-context, or --preset controls",
}
"""What a run needs for the evidence that is missing."""


def beats(gain: Interval | None) -> bool:
    return gain is not None and gain.low > 0


def learned(gain: Interval | None, accuracy: Interval | None, chance: float) -> bool:
    """Above zero-shot, and above chance: where zero-shot is below it, a guess gains as well."""
    return beats(gain) and accuracy is not None and accuracy.low > chance


def _text(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def each_text(values: Sequence[float]) -> str:
    """Every seed's value: a mean may be one seed's doing.

    >>> each_text([0.2, float("nan"), -0.05])
    '.20, –, −.05'
    """
    return ", ".join(short(value) if math.isfinite(value) else "–" for value in values)


def short(value: float) -> str:
    """Two digits, as papers print cosines.

    >>> short(0.304), short(-0.05), short(1.0)
    ('.30', '−.05', '1.00')
    """
    text = f"{abs(value):.2f}"
    minus = "\N{MINUS SIGN}" if value < 0 and text != "0.00" else ""
    return minus + text.replace("0.", ".", 1) if abs(value) < 0.995 else minus + text


def sentences_of(answer: Answer) -> Iterator[str]:
    yield (
        f"{answer.task}, {answer.learner}: {answer.answer}. "
        + (
            f"{answer.measure} is {_text(answer.value)} ({answer.value.label}; each seed: "
            f"{each_text(answer.value.each)})."
            if answer.value.seeds
            else f"There is nothing to explain: {answer.measure} has no value."
        )
    )
    for who, gain, accuracy in (
        ("in-context learning", answer.icl_gain, answer.icl_accuracy),
        (answer.learner, answer.gd_gain, answer.gd_accuracy),
    ):
        if gain is None or accuracy is None:
            yield f"Whether {who} beats zero-shot was not measured."
        elif not beats(gain):
            yield f"There is no learning to compare: {who} against zero-shot gains {_text(gain)} in accuracy."
        elif not learned(gain, accuracy, answer.chance):
            yield (
                f"There is no learning to compare: {who} is right in {_text(accuracy)} of the queries, guessing in "
                f"{answer.chance:.3f}."
            )
    for comparison in answer.comparisons:
        yield _against(answer, comparison)
    if answer.share_of_ceiling is not None:
        yield f"That is {_text(answer.share_of_ceiling)} of what ICL scores against ICL with other demonstrations."
    for name in answer.missing:
        yield f"Evidence is missing: {name} not measured; add {HOW_TO_MEASURE[name]}."
    if 0 < answer.value.seeds < SEEDS:
        yield f"{answer.value.seeds} seed(s) cannot decide; the rule asks for {SEEDS}."


def _against(answer: Answer, comparison: AgainstControl) -> str:
    apart = comparison.difference
    if comparison.control == "untrained" and comparison.beaten:
        start = (
            f"Untrained beats trained: the untrained model scores {comparison.control_value.mean:.3f}, "
            f"the trained one {answer.value.mean:.3f}; difference"
        )
    elif comparison.outcome == "above":
        start = f"Above {comparison.control} by"
    elif comparison.beaten:
        start = f"Below {comparison.control}: difference"
    else:
        start = f"Not clearly above {comparison.control}: difference"
    shown = ""
    if comparison.teaches:
        shown = "; it beats zero-shot and chance here, so it is no null and does not decide"
    elif not comparison.decides:
        shown = "; shown, does not decide"
    elif comparison.outcome == "unclear" and apart.mean > 0:
        needed = comparison.seeds_needed
        shown = "; no number of seeds would settle it" if needed is None else f"; about {needed} seeds would settle it"
        if needed is not None and needed <= apart.seeds:
            shown = f"; the seeds disagree: {each_text(apart.each)}"
    return f"{start} {_text(apart)} (p = {comparison.p_corrected:.3g}{shown})."
