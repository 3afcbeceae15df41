"""How the learning went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Log:
    """What a learner noted of its steps. What it has nothing to say about is None, or not among the records."""

    grad_norm: Tensor | None = None  # [steps, layers]
    step_norm: Tensor | None = None  # [steps, layers]: what the weights really moved
    update_norm: Tensor | None = None  # [layers], relative to the weights
    clipped_steps: int | None = None
    records: dict[str, Tensor] = field(default_factory=dict)  # see dualscope.descent.recorder
