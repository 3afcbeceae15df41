"""Positive and negative controls: models built so that one hypothesis is the truth."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from torch import Tensor

from dualscope.learners import LEARNERS, Bench, identify
from dualscope.metrics.measured import measure_cell
from dualscope.tasks import Episode, Lesson, Task, make_lesson
from dualscope.theory.identity import Draw
from dualscope.theory.linear_attention_step import gd_layer, gd_steps, prediction, tokens_of
from tests.learners.constructed import LAYER, other_task, vector_model, vector_task

SHOTS, FIRST_LABEL = 9, 6  # two in three, as the task's own rule has it
RATES = {"gd-all": 0.01}  # the unembedding learns too, and faster than what is beneath it


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
    """With calibration counted as explanation: all that this context tells is a label prior."""
    rate = RATES.get(name, 0.1) if LEARNERS[name].needs_lr else None
    found = measure_cell(bench, identify(name, options, control, rate), metrics=["explained_raw"])
    return float(found.rows[0]["value"])


def test_a_label_prior_is_calibration_and_leaves_nothing_to_explain(benches: list[Bench]) -> None:
    rows = measure_cell(benches[0], identify("task-vector", {"mode": "add"}), metrics=["explained"]).rows
    values = {row["metric"]: row["value"] for row in rows}
    assert values["kl_icl_zero_shot"] < 0.02
    assert math.isnan(values["explained"])


def test_a_vector_is_found_where_it_is(benches: list[Bench]) -> None:
    for bench in benches:
        assert bench.learned("task-vector", mode="add").choice.settings == {"layer": LAYER}  # type: ignore[union-attr]
        assert explained(bench, "task-vector", mode="add") >= 0.99
        assert explained(bench, "context-patch") >= 0.999
        assert explained(bench, "static-patch", matrix=False, fit=32) >= 0.99


TUNED = {"lr": 0.01, "epochs": 3, "loss": "label", "parameters": "kv", "optimiser": "adam"}
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
    ("name", "options"), [TRUE, *HYPOTHESES, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONGER)]
)
def test_what_is_taught_wrongly_explains_nothing(benches: list[Bench], name: str, options: dict[str, object]) -> None:
    """All that a context tells here is which label is more frequent; only a vector in one layer is the whole of it."""
    own, *wrong = (
        fmean(explained(bench, name, control, **options) for bench in benches)
        for control in (None, "random-labels", "other-task")
    )
    assert max(wrong) < 0.2
    assert (own >= 0.99) == ((name, options) == TRUE)


def share_explained(icl: Tensor, zero: Tensor, said: Tensor) -> float:
    """One minus the share of squared error."""
    return float(1 - (icl - said).square().sum() / (icl - zero).square().sum())


def on_the_construction(seed: int, start: Tensor) -> dict[str, float]:
    """What explicit GD steps and a vector explain of the von Oswald layer's predictions, for one draw of examples."""
    draw, n, eta = Draw(seed), 12, 0.7
    x, y, asked = draw.normal(n, 5), draw.normal(n, 1), draw.normal(200, 5)
    layer = gd_layer(start, eta, n)

    def in_context(inputs: Tensor) -> Tensor:
        tokens = tokens_of(x.expand(len(inputs), -1, -1), y.expand(len(inputs), -1, -1), inputs, start)
        return prediction(layer(tokens), 1)

    icl, zero = in_context(asked), asked @ start.T
    dummies = draw.normal(5, 5)
    said = {
        "step": asked @ gd_steps(x, y, start, eta, 1).T,
        "vector": zero + (in_context(dummies) - dummies @ start.T).mean(0),
        "step, random-labels": asked @ gd_steps(x, y[torch.randperm(n, generator=draw.generator)], start, eta, 1).T,
        "step, other-task": asked @ gd_steps(draw.normal(n, 5), draw.normal(n, 1), start, eta, 1).T,
    }
    return {name: share_explained(icl, zero, value) for name, value in said.items()}


@pytest.mark.parametrize("seed", range(4))
def test_on_the_von_oswald_construction_a_gd_step_explains_all_and_a_vector_does_not(seed: int) -> None:
    found = on_the_construction(seed, Draw(100 + seed).weight(1, 5))
    assert found["step"] >= 0.99
    assert found["vector"] < 0.5


def test_on_the_von_oswald_construction_a_step_that_is_taught_wrongly_explains_nothing() -> None:
    """From no weights, where a step is what the examples say and nothing of what was known before."""
    found = [on_the_construction(seed, torch.zeros(1, 5, dtype=torch.float64)) for seed in range(20)]
    assert min(one["step"] for one in found) >= 0.99
    for control in ("random-labels", "other-task"):
        assert fmean(one[f"step, {control}"] for one in found) < 0.2
