"""Positive and negative controls: models built so that one hypothesis is the truth."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from torch import Tensor

from dualscope.learners import LEARNERS, Bench, identify
from dualscope.metrics.measured import measure_cell
from dualscope.tasks import Episode, Lesson, Task, make_lesson
from dualscope.theory.identity import Draw
from dualscope.theory.vonoswald import gd_layer, gd_steps, prediction, tokens_of
from tests.learners.constructed import LAYER, other_task, vector_model, vector_task

SHOTS, FIRST_LABEL = 9, 6  # two in three, as the task's own rule has it


@pytest.fixture(scope="module")
def benches() -> list[Bench]:
    model = vector_model(1)
    task, other = vector_task(model), other_task()

    def lesson(task: Task, seed: int) -> Lesson:
        return make_lesson(Episode.draw(task, SHOTS, seed, queries=60), model.tokenizer, model.max_positions)

    found = (Bench(model, lesson(task, seed), other=lesson(other, seed)) for seed in range(200))
    fit = [b for b in found if [d.label_index for d in b.lesson.demonstrations].count(0) == FIRST_LABEL]
    assert len(fit) >= 4
    return fit[:4]


def explained(bench: Bench, name: str, control: str | None = None, **options: object) -> float:
    rate = 0.1 if LEARNERS[name].needs_rate else None
    found = measure_cell(bench, identify(name, options, control, rate), metrics=["explained"])
    return float(found.rows[0]["value"])


def test_a_vector_is_found_where_it_is(benches: list[Bench]) -> None:
    for bench in benches:
        assert bench.learned("task-vector", mode="add").choice.settings == {"layer": LAYER}  # type: ignore[union-attr]
        assert explained(bench, "task-vector", mode="add") >= 0.99
        assert explained(bench, "context-patch") >= 0.999
        assert explained(bench, "static-patch", matrix=False, fit=32) >= 0.99


TUNED = {"rate": 0.01, "epochs": 3, "loss": "label", "parameters": "kv", "optimiser": "adam"}
TRUE = ("task-vector", {"mode": "add"})
HYPOTHESES: list[tuple[str, dict[str, object]]] = [
    ("task-vector", {}),
    ("kernel", {}),
    ("probe", {}),
    ("gd", {}),
    ("lcgd", {}),
]
LONGER: list[tuple[str, dict[str, object]]] = [
    ("function-vector", {"heads": 2}),
    ("gd-all", {}),
    ("gd-linearized", {}),
    ("gd-tuned", TUNED),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [TRUE, *HYPOTHESES, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONGER)],
)
def test_what_is_taught_wrongly_explains_nothing_or_as_much(
    benches: list[Bench], name: str, options: dict[str, object]
) -> None:
    """All that a context tells here is which label is more frequent. Descent far enough learns that too; some learners
    have much of it from any labels, and then no more from the right ones.
    """
    own, *wrong = (
        fmean(explained(bench, name, control, **options) for bench in benches)
        for control in (None, "random-labels", "other-task")
    )
    assert max(wrong) < 0.2 or own - max(wrong) < 0.2
    assert (own >= 0.99) == ((name, options) == TRUE)
    assert own < 0.99 or max(wrong) < 0.2


def share_explained(icl: Tensor, zero: Tensor, said: Tensor) -> float:
    """One minus the share of squared error."""
    return float(1 - (icl - said).square().sum() / (icl - zero).square().sum())


def test_on_the_von_oswald_construction_a_gd_step_explains_all_and_a_vector_does_not() -> None:
    draw, n, queries, eta = Draw(0), 12, 200, 0.7
    start = draw.weight(1, 5)
    x, y, asked = draw.normal(n, 5), draw.normal(n, 1), draw.normal(queries, 5)
    layer = gd_layer(start, eta, n)

    def in_context(inputs: Tensor) -> Tensor:
        tokens = tokens_of(x.expand(len(inputs), -1, -1), y.expand(len(inputs), -1, -1), inputs, start)
        return prediction(layer(tokens), 1)

    icl, zero = in_context(asked), asked @ start.T
    step = asked @ gd_steps(x, y, start, eta, 1).T
    dummies = draw.normal(5, 5)
    vector = (in_context(dummies) - dummies @ start.T).mean(0)
    assert share_explained(icl, zero, step) >= 0.99
    assert share_explained(icl, zero, zero + vector) < 0.5
    shuffled = asked @ gd_steps(x, y[torch.randperm(n, generator=draw.generator)], start, eta, 1).T
    other = asked @ gd_steps(draw.normal(n, 5), draw.normal(n, 1), start, eta, 1).T
    assert share_explained(icl, zero, shuffled) < 0.7
    assert share_explained(icl, zero, other) < 0.7
