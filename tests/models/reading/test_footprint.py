"""Memory by part, from shapes alone, against what was measured on a GPU."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualscope.models.reading.footprint import (
    LIBRARIES,
    Demand,
    DrawBytes,
    Shape,
    TrainingDemand,
    draws_that_fit,
    footprint,
)

SHAPES = {  # parameters, layers, width, heads, keys' width, inner width
    "350m": (373_867_520, 24, 1024, 16, 1024, 2816),
    "1.3b": (1_345_423_360, 24, 2048, 16, 2048, 5504),
    "7b": (7_241_732_096, 32, 4096, 32, 1024, 14_336),
    "13b": (13_015_864_320, 40, 5120, 40, 5120, 13_824),
    "33b": (32_528_943_616, 60, 6656, 52, 6656, 17_920),
}
# GiB that `python -m benchmarks.scale --device cuda --precision bfloat16 --queries 512` saw on an H200, and how many
# changes of weights were there: one learner's; a second one's, unless that went to the CPU; a repeated training's.
PEAKS = {"350m": (3, 2.931), "1.3b": (2, 6.747), "7b": (2, 19.97), "13b": (2, 46.83), "33b": (1, 93.29)}


def estimate(name: str, changes: int) -> float:
    task = Demand(queries=512, query_tokens=61, context_tokens=919, demonstration_tokens=49, traces=4, changes=changes)
    return footprint(Shape(*SHAPES[name], vocabulary=32_000), 2, task).total / 2**30


@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_is_near_the_measured_peak(name: str) -> None:
    changes, peak = PEAKS[name]
    assert estimate(name, changes) == pytest.approx(peak, rel=0.1)


def test_a_process_on_the_cpu_has_its_libraries_and_a_copy_of_what_it_moves() -> None:
    shape = Shape(*SHAPES["350m"], vocabulary=32_000)
    on_cpu = footprint(shape, 4, Demand(64, 30, 500, 40, device="cpu"))
    on_gpu = footprint(shape, 4, Demand(64, 30, 500, 40, device="cuda"))
    assert (on_cpu.libraries, on_gpu.libraries) == (LIBRARIES, 0)
    assert on_cpu.changes == 2 * on_gpu.changes == 2 * on_cpu.gradients == 8 * shape.learned
    assert (on_cpu.graphs, on_gpu.gradients) == (0, 0)
    assert on_gpu.graphs > 0
    untrained = footprint(shape, 4, Demand(64, 30, 500, device="cpu"))
    assert (untrained.changes, untrained.gradients) == (0, 0)


# MB that processes with a GPT-2 of 21 million weights (float32) had at most on a CPU, while they ran one such cell and
# its controls: `dualscope run --learner ... --shots 4 --queries 20`.
ON_CPU = {
    "gd": (TrainingDemand(), 677),
    "all weights": (TrainingDemand(everything=True), 1068),
    "all weights, by Adam": (TrainingDemand(everything=True, adam=True), 1315),
    "fitted": (TrainingDemand(adam=True, queries=16), 800),
}


@pytest.mark.parametrize("name", ON_CPU)
def test_what_trains_more_than_keys_and_values(name: str) -> None:
    how, peak = ON_CPU[name]
    shape = Shape(21_284_736, 10, 384, 6, 384, 1536, 8192)
    task = Demand(20, 21, 71, 17, changes=2, device="cpu", training=how)
    assert footprint(shape, 4, task).total / 2**20 == pytest.approx(peak, rel=0.2)


def test_all_weights_learn_in_place_also_on_a_gpu() -> None:
    shape = Shape(*SHAPES["350m"], vocabulary=32_000)
    found = footprint(shape, 4, Demand(64, 30, 500, 40, changes=2, others=1, training=TrainingDemand(everything=True)))
    assert found.changes == 8 * shape.parameters + 4 * shape.learned  # its own, the copy, and another learner's
    assert found.gradients == 4 * shape.parameters


@given(st.integers(1, 3000), st.integers(1, 200), st.integers(0, 4000), st.integers(0, 200), st.integers(1, 4))
def test_more_work_never_needs_less(queries: int, tokens: int, context: int, taught: int, held: int) -> None:
    shape = Shape(*SHAPES["1.3b"], vocabulary=32_000)
    less = footprint(shape, 2, Demand(queries, tokens, context, taught, held, held))
    more = footprint(shape, 2, Demand(queries + 64, tokens, context + 64, taught + 16, held + 1, held + 1))
    assert less.total <= more.total
    assert less.total <= sum(less.parts.values())


@pytest.mark.parametrize("config", [{}, {"n_layer": -1, "n_embd": "8", "n_head": 0}, {"text_config": 3}])
def test_a_strange_configuration_is_no_traceback(config: dict[str, object]) -> None:
    assert footprint(Shape.of(config, 10), 4, Demand(1, 1)).total > 0


def test_draws_at_once_are_as_many_as_memory_has_room_for() -> None:
    shape = Shape(*SHAPES["1.3b"], vocabulary=32_000)
    each = DrawBytes.of(shape, 4, TrainingDemand(), 48, 900)

    def demand(memory: int | None) -> Demand:
        return Demand(50, 45, 900, 48, draws=12, memory=memory)

    alone = footprint(shape, 4, replace(demand(None), draws=1))
    assert footprint(shape, 4, demand(None)).changes == alone.changes + 12 * each.change
    weights = alone.weights
    tight = footprint(shape, 4, demand(weights + 8 * each.total))  # half of the room is for draws
    assert tight.changes == alone.changes + 4 * each.change
    assert tight.context == 4 * each.context


@given(st.integers(1, 40), st.integers(1, 1000), st.integers(-100, 20_000))
def test_groups_of_draws_are_of_nearly_equal_size(wanted: int, each: int, room: int) -> None:
    size = draws_that_fit(wanted, each, room)
    groups = -(-wanted // size)
    assert 1 <= size <= wanted
    assert size == 1 or size * each <= room / 2
    assert groups * size - wanted < groups, "no group is smaller by more than one draw a group"
