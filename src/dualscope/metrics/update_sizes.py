"""How the learning itself went: the sizes of gradients and updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dualscope.core.statistics import SIZE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import family
from dualscope.metrics.values import Logged, Values


def _logged(case: Case, names: frozenset[str]) -> Iterator[Values]:
    for name in names:
        value = getattr(case.learned.log, name)
        if value is not None:
            yield Logged(name, torch.as_tensor(value))


def _add(name: str, formula: str, about: str) -> None:
    family(_logged, lambda case: getattr(case.learned.log, name) is not None, SIZE)(name, formula, about)


_add("grad_norm", "|dL/dW_l| of each step", "norm of the gradient of a layer's keys and values, per step")
_add(
    "update_norm",
    "|W_l - W_l(0)| / |W_l(0)|",
    "how far a layer's keys and values moved, relative to the weights",
)
_add("clipped_steps", "number of steps", "how many steps the clip cut")
