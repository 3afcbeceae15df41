"""What can be said of one learner on one task: the comparisons, the answer, and the words for them. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dualscope.core.learning import Learning
from dualscope.core.statistics import Interval, SignFlip

PRIMARY = "sim_aou"
ALPHA = 0.05
SMALL = 0.02
SEEDS = 3

Outcome = Literal["above", "not above", "unclear"]
Word = Literal["above the controls", "not above", "not testable", "inconclusive"]


@dataclass(frozen=True)
class Comparison:
    """The learner's similarity beside a control's."""

    control: str
    decides: bool
    control_value: Interval
    difference: Interval
    p: float
    p_holm: float
    sign_flip: SignFlip

    @property
    def outcome(self) -> Outcome:
        if self.difference.seeds < SEEDS:
            return "unclear"
        if self.difference.high < SMALL:
            return "not above"
        return "above" if self.difference.low > 0 and self.p_holm < ALPHA else "unclear"

    @property
    def beaten(self) -> bool:
        """Does the control score higher than the learner, beyond its interval?"""
        return self.difference.high < 0


@dataclass(frozen=True)
class Answer:
    """What can be said of one learner on one task."""

    task: str
    learning: Learning
    learner: str  # how people call it here
    answer: Word
    value: Interval
    icl_gain: Interval | None
    gd_gain: Interval | None
    comparisons: tuple[Comparison, ...]
    missing: tuple[str, ...]
    share_of_ceiling: Interval | None
    sentences: tuple[str, ...]


def beats(gain: Interval | None) -> bool:
    return gain is not None and gain.low > 0


def _text(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def sentences_of(answer: Answer) -> Iterator[str]:
    yield (
        f"{answer.task}, {answer.learner}: {answer.answer}. {PRIMARY} is {_text(answer.value)} ({answer.value.label})."
    )
    for who, gain in (("in-context learning", answer.icl_gain), (answer.learner, answer.gd_gain)):
        if gain is None:
            yield f"Whether {who} beats zero-shot was not measured."
        elif not beats(gain):
            yield f"There is no learning to compare: {who} against zero-shot gains {_text(gain)} in accuracy."
    for comparison in answer.comparisons:
        yield _against(answer, comparison)
    if answer.share_of_ceiling is not None:
        yield f"That is {_text(answer.share_of_ceiling)} of what ICL scores against ICL with other demonstrations."
    for name in answer.missing:
        yield f"Evidence is missing: {name} not measured."
    if answer.value.seeds < SEEDS:
        yield f"{answer.value.seeds} seed(s) cannot decide; the rule asks for {SEEDS}."


def _against(answer: Answer, comparison: Comparison) -> str:
    apart, flip = comparison.difference, comparison.sign_flip
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
    shown = "" if comparison.decides else "; shown, does not decide"
    return (
        f"{start} {_text(apart)} (p = {comparison.p_holm:.3g} after Holm; sign-flip p = {flip.p:.3g}, "
        f"{flip.seeds} seeds cannot go below {flip.smallest:.3g}{shown})."
    )
