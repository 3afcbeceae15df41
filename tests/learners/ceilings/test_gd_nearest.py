"""The descent whose rate and epochs respond most as in-context learning does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dualscope.choosing.halving import HELD_OUT
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench
from dualscope.learners.ceilings import gd_nearest
from dualscope.learners.ceilings.gd_nearest import GdNearest, NearestOptions, response
from dualscope.learners.interventions import Relabel, SpareRelabel
from dualscope.learners.response_bench import OnDraws, ResponseBench
from dualscope.models.reading.trace import Trace
from tests.learners.setting import tiny_lesson, tiny_task, wrapped

FEW: dict[str, Any] = {"fit": 8, "draws": 8}


def bench_of(dtype: torch.dtype = torch.float64) -> Bench:
    model = wrapped("llama", dtype)
    return Bench(model, tiny_lesson(model, task=tiny_task(n=140), shots=8, queries=4, balanced=True))


def plain_response(icl: list[Trace], own: list[Trace], levels: list[str | None]) -> float:
    """r of the answers by loops over draws, queries and classes."""

    def moved(traces: list[Trace]) -> dict[tuple[int, int, int], float]:
        found = {}
        for k, trace in enumerate(traces):
            for q, scores in enumerate(trace.label_logprobs.double().tolist()):
                p = [math.exp(value) for value in scores]
                logs = [math.log(0.999 * value / sum(p) + 0.001 / len(p)) for value in p]
                for c, value in enumerate(logs):
                    found[k, q, c] = value - sum(logs) / len(logs)
        less = {}
        for k, q, c in found:
            same = [j for j in range(len(traces)) if levels[j] == levels[k]]
            less[k, q, c] = found[k, q, c] - sum(found[j, q, c] for j in same) / len(same)
        queries = len(traces[0].label_logprobs)
        return {
            (k, q, c): value - sum(less[k, other, c] for other in range(queries)) / queries
            for (k, q, c), value in less.items()
        }

    r, s = moved(icl), moved(own)
    below = math.sqrt(sum(value**2 for value in r.values()) * sum(value**2 for value in s.values()))
    return sum(r[key] * s[key] for key in r) / below


def test_the_choice_is_the_highest_response_by_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gd_nearest, "GRID", (0.01, 0.3, 3.0))
    monkeypatch.setattr(gd_nearest, "EPOCHS", (1, 2))
    bench = bench_of()
    learned = bench.learned("gd-nearest", **FEW)
    choice = learned.choice
    assert choice is not None

    asked = bench.asking(bench.materials(8, "it"))
    draws = SpareRelabel().draws(asked.lesson, 8)
    levels: list[str | None] = [draw.level for draw in draws]
    icl = [asked.with_lesson(draw.lesson).in_context for draw in draws]
    for row in choice.curve:
        own = [asked.with_lesson(draw.lesson).learned("gd", row["lr"], epochs=row["epochs"]).trace for draw in draws]
        assert row[HELD_OUT] == pytest.approx(1 - plain_response(icl, own, levels), abs=1e-4)
    best = min(choice.curve, key=lambda row: row[HELD_OUT])
    assert choice.settings == {"lr": best["lr"], "epochs": best["epochs"]}
    assert {row["epochs"] for row in choice.curve} == {1, 2}

    plain = bench.learned("gd", best["lr"], epochs=best["epochs"])
    torch.testing.assert_close(learned.trace.label_logprobs, plain.trace.label_logprobs, rtol=0, atol=0)


def test_it_is_chosen_on_other_draws_and_queries_than_the_verdict_looks_at() -> None:
    bench = bench_of()
    asked = bench.materials(8, "it")
    seen = {*bench.lesson.query_ids, *(one.id for one in bench.lesson.demonstrations)}
    assert not seen & set(asked.query_ids)
    own, judged = ([draw.lesson.context for draw in kind().draws(bench.lesson, 8)] for kind in (SpareRelabel, Relabel))
    assert own != judged
    assert GdNearest.role == "ceiling"


def test_the_choice_is_that_of_the_lesson_itself_on_draws_and_under_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gd_nearest, "GRID", (0.01, 0.3, 3.0))
    monkeypatch.setattr(gd_nearest, "EPOCHS", (1,))
    bench = bench_of()
    choice = bench.learned("gd-nearest", **FEW).choice
    assert choice is not None
    lr = choice.settings["lr"]
    under = bench.learned("gd-nearest", control="random-labels", **FEW)
    plain = bench.learned("gd", lr, control="random-labels")
    torch.testing.assert_close(under.trace.label_logprobs, plain.trace.label_logprobs, rtol=0, atol=0)

    responding = ResponseBench(bench, "relabel", 8)
    spec = LearnerSpec.of("gd-nearest", FEW)
    found = responding.on_draws(spec, plant=True)
    same = responding.on_draws(LearnerSpec("gd", lr=lr), plant=True)
    for one, other in zip((*found.traces, *(found.planted or ())), (*same.traces, *(same.planted or ())), strict=True):
        torch.testing.assert_close(one.label_logprobs, other.label_logprobs, rtol=0, atol=0)


def test_a_rate_at_which_it_diverges_is_as_far_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gd_nearest, "GRID", (0.1, 1e38))
    monkeypatch.setattr(gd_nearest, "EPOCHS", (1,))
    choice = bench_of(torch.float32).learned("gd-nearest", **FEW).choice
    assert choice is not None
    assert choice.settings["lr"] == 0.1
    assert max(row[HELD_OUT] for row in choice.curve) == 2.0


def test_what_does_not_move_has_no_response() -> None:
    bench = bench_of()
    responding = ResponseBench(bench, SpareRelabel(), 8)
    icl, still = responding.on_draws(LearnerSpec("in-context")), responding.on_draws(LearnerSpec("zero-shot"))
    assert response(icl, still) == 0.0
    assert response(icl, icl) == pytest.approx(1.0)
    some = OnDraws(icl.draws[:6], icl.traces[:6])  # a draw that failed is left out of both
    assert response(icl, some) == pytest.approx(1.0)
    assert response(some, icl) == pytest.approx(1.0)


def test_given_settings_are_not_chosen() -> None:
    options = NearestOptions.model_validate({"lr": 0.1, "epochs": 2})
    assert not GdNearest().is_open(options)
    assert bench_of().learned("gd-nearest", lr=0.1, epochs=2).choice is None
