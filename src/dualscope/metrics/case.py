"""What a metric sees: one learner's result, and the results that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.learners.learner import Learned, Reread, Result
from dualscope.models.reading.trace import Trace, rows_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from dualscope.tasks.lesson import Lesson


S = TypeVar("S")


@dataclass(frozen=True)
class Case:
    """One learner on one episode. All traces are of the same queries, in the same order.

    `others` are further learners of the same episode: contexts that teach nothing for `sim_aou_null`, plain gradient
    descent for `alpha`.

    >>> from dualscope import Bench, Case, Episode, Model, Task, make_lesson, measure
    >>> from dualscope.core.spec import IN_CONTEXT, LearnerSpec
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=4, queries=6), model.tokenizer, model.max_positions)
    >>> bench = Bench(model, lesson)
    >>> case = Case(bench.zero_shot, bench.result(LearnerSpec("gd", lr=1.0)), bench.result(IN_CONTEXT))
    >>> case.is_gradient, case.trace.attn_out.shape == case.reference.attn_out.shape
    (True, True)

    Raises:
        InputError: The traces are not of the same queries.
    """

    zero_shot: Trace
    own: Result
    against: Result  # in-context, unless said otherwise
    relative_positions: bool = False  # rotary or ALiBi: layer 0 cannot see that a context was there
    output_bias: Tensor | None = None
    """[layers, width] of the attention's output projection; None: it has none."""
    seed: int = 0
    lesson: Lesson | None = None  # needed by the kendall family, and for label words in `predicted_share`
    others: tuple[Result, ...] = ()
    reread: Reread | None = None  # some queries once more, in another order of summation: for snr
    read: Mapping[str, Any] = field(default_factory=dict)
    """What the metrics' own readings of the model gave, mostly by metric; see `Metric.reading`."""

    _shared: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        ids = self.zero_shot.query_ids
        for result in (self.against, self.own, *self.others):
            if result.trace.query_ids != ids:
                raise InputError(
                    f"the trace of '{result.learning.label}' is of other queries than the zero-shot trace "
                    f"({len(result.trace.query_ids)} against {len(ids)}); metrics compare the same queries in the "
                    "same order"
                )

    def shared(self, work: Callable[[Case], S]) -> S:
        """What several metrics need, computed once a case."""
        if work not in self._shared:
            self._shared[work] = work(self)
        found: S = self._shared[work]
        return found

    @property
    def learned(self) -> Learned:
        return self.own.learned

    @property
    def learning(self) -> LearnerSpec:
        return self.own.learning

    @property
    def trace(self) -> Trace:
        return self.own.trace

    @property
    def reference(self) -> Trace:
        return self.against.trace

    @property
    def is_baseline(self) -> bool:
        """Zero-shot: there is no change."""
        return self.own.role == "baseline"

    @property
    def is_reference(self) -> bool:
        """In-context learning itself."""
        return self.own.role == "reference"

    @property
    def is_pair(self) -> bool:
        """Is there a change to compare with the reference's?"""
        return not self.is_baseline and self.learning != self.against.learning

    @property
    def is_gradient(self) -> bool:
        """Did the weights change?"""
        return self.learned.delta is not None

    @property
    def has_attention(self) -> bool:
        return not self.learned.predictions_only

    @property
    def nulls(self) -> tuple[Result, ...]:
        """Stand-ins for in-context learning that have nothing to learn from."""
        return tuple(
            other
            for other in self.others
            if other.role == "null" and other.learned.by_context and not other.learned.is_rounding
        )

    def turned_right(self) -> Tensor:
        """Queries that both the reference and the learner turn from wrong to right: [queries], boolean."""
        return ~self.zero_shot.correct & self.reference.correct & self.trace.correct

    def only(self, keep: Tensor) -> Case:
        """The same case with the queries that a boolean mask keeps."""
        rows = keep.nonzero().squeeze(-1)
        ids = tuple(self.zero_shot.query_ids[i] for i in rows.tolist())

        def cut(trace: Trace) -> Trace:
            return replace(trace.map(lambda tensor: rows_of(tensor, rows)), query_ids=ids)

        def cut_result(result: Result) -> Result:
            return replace(result, learned=replace(result.learned, trace=cut(result.trace)))

        return replace(
            self,
            zero_shot=cut(self.zero_shot),
            own=cut_result(self.own),
            against=cut_result(self.against),
            others=tuple(map(cut_result, self.others)),
            reread=None if self.reread is None else self.reread.only(ids),
        )


# What a metric returns: numbers per query, sums over queries, or numbers that no query has a part in.


@dataclass(frozen=True)
class PerQuery:
    """One number per query, and per layer and head where the metric has them; the value is their mean.

    NaN is left out: of a share of some queries, all others are NaN. With `weights` the value is
    sum(values) / sum(weights) instead.
    """

    metric: str
    values: Tensor  # [queries], [queries, layers] or [queries, layers, heads]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)
    weights: Tensor | None = None  # the same shape
    over_layers: Literal["mean", "min", "none"] = "mean"  # how layers make the aggregate row
    scale: float = 1.0  # for counts: the number of queries


@dataclass(frozen=True)
class Pooled:
    """A number that only all queries together have: `combine` makes it from sums over the queries.

    Given as sums, so that a resample of the queries costs one matrix product.
    """

    metric: str
    parts: Tensor  # [queries, parts]
    combine: Callable[[np.ndarray], np.ndarray]  # [..., parts] of sums -> [...]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)


@dataclass(frozen=True)
class Logged:
    """Numbers of the learning itself, no queries and so no interval."""

    metric: str
    values: Tensor  # [], [layers] or [steps, layers]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)


@dataclass(frozen=True)
class PerHead:
    """Numbers of heads on samples of their own, which are not the queries; the value of a head is their mean."""

    metric: str
    values: Tensor  # [samples, layers, heads]
    reference: LearnerSpec | str | None = None


Values = PerQuery | Pooled | PerHead | Logged
