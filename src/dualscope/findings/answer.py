"""What can be said of one learner on one task: the comparisons, the answer, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dualscope.core.estimate import Interval
from dualscope.core.registry import ELSEWHERE, Description
from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import LEAST, sign_test

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
    """How many seeds would show a difference of this size; None: more than a study can have."""
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
        start = f"Lower than {comparison.control}: difference"
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


# What people call learners and metrics, as these say it of themselves. Identifiers stay for files and commands.


def described(learner: str) -> Description:
    """What a learner says of itself; of a plugin's that is not loaded, what a run that was opened says."""
    from dualscope.learners import LEARNERS

    if learner in LEARNERS:
        return LEARNERS[learner].description()
    return ELSEWHERE.get(learner) or Description(learner)


def metric_title(name: str) -> str:
    """A metric in words; one that is not here is called by its name."""
    from dualscope.metrics import METRICS

    return METRICS[name].title if name in METRICS and METRICS[name].title else name


def learner_title(learning: LearnerSpec) -> str:
    """A learner in words, with its options and control.

    >>> learner_title(LearnerSpec.of("gd", {"epochs": 3})), learner_title(LearnerSpec("mine", "random-labels"))
    ('gradient descent (epochs=3)', 'mine with random labels')
    """
    from dualscope.learners import COMBINATORS

    options = ", ".join(f"{key}={value}" for key, value in sorted(learning.settings.items()))
    title = described(learning.name).title + (f" ({options})" if options else "")
    return f"{title} with {COMBINATORS[learning.control].title}" if learning.control else title


RULE = f"""\
The question is the likeness of the whole change: is a learner's change of the attention outputs more like the \
context's than its controls' are? It is asked of every task and every hypothesis by itself, on the trained model. Most \
of a context's effect on attention does not depend on its labels, so being alike does not show that a learner explains \
in-context learning. This test can reject a learner; where it does not, it shows only that the learner is more like \
in-context learning than every control here.
1. The measure is {PRIMARY}: the cosine of the two changes of the attention output, mean over layers and queries. \
A learner that changes predictions only, or acts at one layer, has no such cosine: it is asked for {EXPLAINED}, the \
share of the context's effect on the label probabilities that it reproduces, beyond a temperature and class biases, \
against the same controls as far as they have a share (not mismatched queries, not likeness to a null, not beyond \
dilution).
2. Not testable: unless in-context learning and the learner each beat both zero-shot and chance in accuracy, with \
intervals that exclude them, there is no learning to compare; nor where {EXPLAINED} has no value (after temperature \
and biases zero-shot is within {LEAST:g} nats of the context). (Accuracy is against what the demonstrations teach: \
where their labels are flipped, against the flipped labels; where they are random, against the right ones.)
3. Controls that decide, each of the same learner: the untrained model (weights drawn anew); a random update of the \
same size; mismatched queries (one query's ICL change against another's learned change); the learner taught random \
labels, and taught another task. And what is like ICL with nothing to learn from: the query moved to ICL's positions \
(position), its attention diluted as ICL dilutes it (dilution), contexts that teach nothing; the learner's likeness to \
such a context in place of ICL; and what is left of the likeness when the direction that dilution moves along is taken \
out of both changes (beyond dilution), which has to be above 0. A context, random labels or another task that beats \
both zero-shot and chance here (with p-values that are corrected as in 4) teaches something: it is marked, and does \
not decide. Differences are paired by seed and query.
4. Above the controls: against every deciding control that was measured, the difference is above 0 with a p-value \
below {ALPHA:g} after it was multiplied by the number of learners (rates and tasks) that can be tested, and it is \
above 0 in enough seeds for a sign test (below {ALPHA:g}: 5 of 5 seeds, 7 of 8, 9 of 10); the untrained model and at \
least one other control must have been measured, over at least {SEEDS} seeds. By {EXPLAINED} the untrained model \
decides where it has a value and need not be measured: its context often changes too little to be explained.
5. Not above: against some deciding control, the difference is below {SMALL:g} with a p-value below {ALPHA:g} after it \
was multiplied by the number of controls and by that of 4, and it is below {SMALL:g} in enough seeds for a sign test.
6. Inconclusive: anything else; how many seeds would settle it is said.
Intervals are 95 % intervals over seeds and queries: each part with Student's quantile of its own degrees of freedom; \
one of a share or a cosine ends where these do. Their coverage and the rate of false answers are simulated, also for \
skewed seeds and many learners.\
"""
