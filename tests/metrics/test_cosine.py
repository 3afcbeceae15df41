"""Properties of the cosine, and that a device gives the same rows as the CPU."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualscope.core.rows import MetricRow
from dualscope.learners.learner import Reread
from dualscope.metrics import measure
from dualscope.metrics.attention_output import sim_aou_mismatched
from dualscope.metrics.cosine import cosine, layer_slices, unit
from tests.metrics.cases import case_of, gradient, random_case, random_trace, result

numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)
vectors = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=10)


@given(vectors, st.floats(1e-3, 1e3))
def test_bounded_symmetric_and_blind_to_scale(pairs: list[tuple[float, float]], scale: float) -> None:
    x, y = torch.tensor(pairs, dtype=torch.float64).T
    found = cosine(x, y).item()
    if math.isnan(found):
        assert not x.any() or not y.any() or x.norm() * y.norm() == 0
        return
    assert abs(found) <= 1 + 1e-12
    assert cosine(y, x).item() == pytest.approx(found, abs=1e-12)
    assert cosine(scale * x, y).item() == pytest.approx(found, abs=1e-9)
    assert cosine(-x, y).item() == pytest.approx(-found, abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 200))
def test_slices_cover_the_layers_once(queries: int, layers: int, limit: int) -> None:
    whole = torch.arange(layers).expand(queries, layers)
    parts = [whole[:, at] for at in layer_slices(whole, limit)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert all(part.numel() <= limit or part.shape[1] == 1 for part in parts)


@given(st.integers(2, 8), st.integers(0, 5))
def test_mismatched_is_the_mean_over_all_other_queries(queries: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z, c, g = (torch.randn(queries, 1, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    every = (unit(c - z)[:, 0] @ unit(g - z)[:, 0].T).fill_diagonal_(0.0)
    torch.testing.assert_close(sim_aou_mismatched(z, c, g)[:, 0], every.sum(1) / (queries - 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gives_the_same_rows() -> None:
    def on(device: str) -> list[MetricRow]:
        case = random_case(1, relative=True, others=(result(random_trace(9).to(device), "null-context"),))
        case = case_of(
            case.zero_shot.to(device),
            case.reference.to(device),
            gradient(case.trace.to(device)),
            relative_positions=True,
            others=case.others,
            reread=Reread(random_trace(7).to(device), random_trace(8).to(device)),
        )
        rows = measure(case, per_head=True).rows + measure(case, subset="f2t").rows
        return [row for row in rows if row["metric"] != "sim_aou_random"]  # another generator

    for here, there in zip(on("cpu"), on("cuda"), strict=True):
        assert {k: v for k, v in here.items() if k not in ("value", "low", "high")} == {
            k: v for k, v in there.items() if k not in ("value", "low", "high")
        }
        assert there["value"] == pytest.approx(here["value"], abs=1e-9, nan_ok=True)
