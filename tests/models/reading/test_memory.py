"""Batches: a deterministic size, and only the batch that did not fit is halved."""

from typing import Any

import pytest
import torch

from dualscope.models import Model
from dualscope.models.loading.device_and_precision import total_memory
from dualscope.models.reading import memory, read
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model


@pytest.fixture
def model() -> Model:
    return Model(*tiny_model("gpt2", torch.float64))


def test_batch_size_follows_total_memory_and_lengths(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_memory(size: int) -> list[int]:
        monkeypatch.setattr(memory, "total_memory", lambda device: size)
        return [memory.batch_size(model, own, context) for own, context in ((10, 0), (10, 1000), (100, 1000))]

    small, large = with_memory(2**25), with_memory(2**36)
    assert small == sorted(small, reverse=True)
    assert all(a <= b for a, b in zip(small, large, strict=True))
    assert small[2] < large[2]
    assert with_memory(2**25) == small  # whatever was allocated meanwhile
    assert all(size & (size - 1) == 0 for size in small + large)
    assert with_memory(1) == [1, 1, 1]
    assert large[0] * 10 <= memory.MOST_TOKENS["cpu"]


def test_estimate_counts_tied_weights_once_and_grows_with_the_context(model: Model) -> None:
    short, long = (memory.estimate(model.hf, torch.float32, 10, context) for context in (100, 200))
    assert short.weights == sum(p.numel() for p in model.hf.parameters()) * 4
    assert long.context == 2 * short.context == 2 * 100 * model.n_layers * model.width * 4 * 2
    assert "KiB" not in str(short)
    assert "a query" in str(short)


def test_total_memory_of_this_machine() -> None:
    assert total_memory(torch.device("cpu")) > 2**28


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_only_the_batch_that_failed_is_halved(model: Model, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    lesson = random_lesson(queries=(3,) * 8 + (5,) * 4)
    prefix = model.prefix(lesson.context)
    wanted = model.read(lesson, prefix, batch_size=4)
    assert model.counters["oom retries"] == 0
    real, sizes = read.read_batch, []

    def full(reading: Any, batch: Any) -> Any:
        """The device cannot hold the four queries of three tokens that start with the fourth."""
        sizes.append(len(batch.queries))
        if 5 in batch.queries and len(batch.queries) > 1:
            raise error
        return real(reading, batch)

    monkeypatch.setattr(read, "read_batch", full)
    before = model.counters["batches"]
    trace = model.read(lesson, prefix, batch_size=4)
    assert sizes == [4, 4, 4, 2, 1, 1, 2]
    assert model.counters["oom retries"] == 2
    assert model.counters["batches"] - before == 5
    assert torch.allclose(trace.attn_out, wanted.attn_out, rtol=1e-12)
    assert torch.allclose(trace.label_logprobs, wanted.label_logprobs, rtol=1e-12)


def test_one_query_that_does_not_fit_and_other_errors_are_raised(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = random_lesson(queries=(3, 3))
    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("shapes do not match")):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(read, "read_batch", fail)
        with pytest.raises(RuntimeError, match=str(error)):
            model.read(lesson)


def test_the_prefix_is_stored_once_whatever_the_batch(model: Model) -> None:
    lesson = random_lesson(queries=(3,) * 16)
    prefix = model.prefix(lesson.context)
    size = prefix.nbytes
    assert size == 2 * model.n_layers * len(lesson.context) * model.width * 8
    pointers = [key.data_ptr() for key in prefix.keys]
    for batch_size in (1, 16):
        model.read(lesson, prefix, batch_size=batch_size)
    assert [key.data_ptr() for key in prefix.keys] == pointers
    assert prefix.nbytes == size
