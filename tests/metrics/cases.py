"""Traces made up for tests: random, ragged, or with a structure that a metric should see."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import CONTROL_ROLES, Role
from dualscope.descent.delta import Delta
from dualscope.descent.dual_records import Log
from dualscope.learners.learner import Learned, Result
from dualscope.metrics.case import Case, PerQuery
from dualscope.metrics.measured import compute
from dualscope.models.reading.trace import Trace

QUERIES, LAYERS, HEADS, TOKENS, WIDTH, CLASSES = 12, 3, 2, 7, 16, 3


def lengths(queries: int = QUERIES, tokens: int = TOKENS) -> torch.Tensor:
    """Ragged: from 1 own token up to `tokens`."""
    return torch.arange(queries) % tokens + 1


def random_trace(
    seed: int,
    queries: int = QUERIES,
    layers: int = LAYERS,
    heads: int = HEADS,
    tokens: int = TOKENS,
    width: int = WIDTH,
    classes: int = CLASSES,
) -> Trace:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    sizes = lengths(queries, tokens)
    scores = draw(queries, layers, heads, tokens)
    own = torch.arange(tokens) >= tokens - sizes[:, None]
    scores = torch.where(own[:, None, None], scores, torch.nan)
    labels = torch.randint(classes, (queries,), generator=torch.Generator().manual_seed(99))
    return Trace(
        attn_out=draw(queries, layers, width),
        attn_scores=scores,
        lengths=sizes,
        residual=draw(queries, layers, width),
        label_logprobs=draw(queries, classes).log_softmax(-1),
        labels=labels,
        query_ids=tuple(f"validation:{i}" for i in range(queries)),
        label_logprobs_at_layer=draw(queries, layers, classes),
    )


def a_delta() -> Delta:
    return Delta({"layers.0.key.weight": torch.ones(2, 2)})


def gradient(trace: Trace, **log: Any) -> Learned:
    return Learned(trace, a_delta(), Log(**log))


ROLES: dict[str, Role] = {"zero-shot": "baseline", "in-context": "reference", "null-context": "null"}


def result(learned: Learned | Trace, learning: LearnerSpec | str = "gd") -> Result:
    """A result of a learner by its name or identity, in the role that it has."""
    learning = LearnerSpec(learning) if isinstance(learning, str) else learning
    role = ROLES.get(learning.name, "hypothesis")
    role = CONTROL_ROLES[learning.control] if learning.control is not None else role
    learned = Learned(learned) if isinstance(learned, Trace) else learned
    return Result(learning, role, replace(learned, by_context=role in ("reference", "null")))


def case_of(
    zero_shot: Trace,
    reference: Trace,
    learned: Learned | Trace,
    learning: LearnerSpec | str = "gd",
    against: str = "in-context",
    **rest: Any,
) -> Case:
    return Case(zero_shot, result(learned, learning), result(reference, against), **rest)


def random_case(seed: int = 0, relative: bool = False, others: tuple[Result, ...] = (), **shape: int) -> Case:
    """A gradient learner against in-context, all traces independent."""
    z, c, g = (random_trace(3 * seed + i, **shape) for i in range(3))
    return case_of(z, c, gradient(g), relative_positions=relative, seed=seed, others=others)


def predicting(trace: Trace, predictions: list[int], labels: list[int]) -> Trace:
    """The trace with given predictions and gold labels."""
    classes = trace.label_logprobs.shape[-1]
    logprobs = torch.nn.functional.one_hot(torch.tensor(predictions), classes).float().log_softmax(-1)
    return replace(trace, label_logprobs=logprobs, labels=torch.tensor(labels))


def predicted_case(labels: list[int], zero: list[int], icl: list[int], gd: list[int], classes: int = 3) -> Case:
    base = random_trace(0, queries=len(labels), classes=classes)
    z, c, g = (predicting(base, p, labels) for p in (zero, icl, gd))
    return case_of(z, c, gradient(g))


def per_query(case: Case, names: Iterable[str]) -> list[PerQuery]:
    """What these metrics find, all of which have a number for every query."""
    found = []
    for values in compute(case, names):
        assert isinstance(values, PerQuery)
        found.append(values)
    return found


def cos(left: np.ndarray, right: np.ndarray) -> float:
    """The plain cosine, with the NaN rule, in float64."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    size = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / size) if size > 0 and np.isfinite(size) else float("nan")
