"""What a metric sees: one learner's result, beside what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.learners.learner import Learned, Reread
    from dualscope.tasks.lesson import Lesson

PREDICTIONS_ONLY = frozenset({"probe"})  # learners whose attention is the untouched model's
NULLS = (
    "null-context",
    "zero-shot-offset",
)  # stand-ins for in-context learning that have nothing to learn from


@dataclass(frozen=True)
class Case:
    """One learner on one episode. All traces are of the same queries, in the same order.

    `others` holds further learners of the same episode under the names that rows will show as their `reference`:
    null contexts (names that begin with one of `NULLS`) for `sim_aou_null`, gradient learners for `alpha`.
    """

    zero_shot: Trace
    reference: Trace  # in-context, unless said otherwise
    learned: Learned
    learner: str
    label: str = ""  # the learner with its options, as rows would name it; by default its name
    reference_name: str = "in-context"
    relative_positions: bool = False  # rotary or ALiBi: layer 0 cannot see that a context was there
    first_window: int | None = None  # how many tokens layer 0 sees, its own among them; None: all
    output_bias: Tensor | None = (
        None  # [layers, width] of the attention's output projection; None: it has none
    )
    seed: int = 0
    lesson: Lesson | None = None  # needed by the kendall family, and for label words in `predicted_share`
    others: Mapping[str, Learned] = field(default_factory=dict)
    reread: Reread | None = None  # some queries once more, in another order of summation: for snr

    def __post_init__(self) -> None:
        ids = self.zero_shot.query_ids
        named = {self.reference_name: self.reference, self.name: self.learned.trace}
        named |= {name: other.trace for name, other in self.others.items()}
        for name, trace in named.items():
            if trace.query_ids != ids:
                raise InputError(
                    f"the trace of '{name}' is of other queries than the zero-shot trace "
                    f"({len(trace.query_ids)} against {len(ids)}); metrics compare the same queries in the same order"
                )

    @property
    def trace(self) -> Trace:
        return self.learned.trace

    @property
    def is_pair(self) -> bool:
        """Is there a change to compare with the reference's?"""
        return self.learner != "zero-shot" and self.name != self.reference_name

    @property
    def name(self) -> str:
        return self.label or self.learner

    @property
    def is_gradient(self) -> bool:
        """Did the weights change?"""
        return self.learned.delta is not None

    @property
    def has_attention(self) -> bool:
        return self.learner not in PREDICTIONS_ONLY

    @property
    def nulls(self) -> dict[str, Learned]:
        """Where positions are relative, moving a query moves nothing: what is seen of it is rounding, and no null."""
        moved = "zero-shot-offset" if self.relative_positions else None
        return {
            name: other for name, other in self.others.items() if name.startswith(NULLS) and name != moved
        }

    def turned_right(self) -> Tensor:
        """Queries that both the reference and the learner turn from wrong to right: [queries], boolean."""
        return ~self.zero_shot.correct & self.reference.correct & self.trace.correct

    def only(self, keep: Tensor) -> Case:
        """The same case with the queries that a boolean mask keeps."""
        rows = keep.nonzero().squeeze(-1)
        ids = tuple(self.zero_shot.query_ids[i] for i in rows.tolist())

        def cut(trace: Trace) -> Trace:
            return replace(trace.map(lambda tensor: tensor[rows.to(tensor.device)]), query_ids=ids)

        def cut_learned(learned: Learned) -> Learned:
            return replace(learned, trace=cut(learned.trace))

        return replace(
            self,
            zero_shot=cut(self.zero_shot),
            reference=cut(self.reference),
            learned=cut_learned(self.learned),
            others={name: cut_learned(other) for name, other in self.others.items()},
        )
