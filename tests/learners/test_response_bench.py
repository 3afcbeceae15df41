"""Learners on every draw: what diverges is named and left out, what cannot be planted is said."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError, NotFiniteError
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.learners import LEARNERS, Bench, Learned, Learner
from dualscope.learners.nulls import unlabelled
from dualscope.learners.plants import planted
from dualscope.learners.response_bench import ResponseBench, cannot_be_planted
from tests.learners.setting import tiny_bench, tiny_task

BAD: set[int] = set()


@pytest.fixture
def diverging() -> Iterator[str]:
    """A learner whose answers are not finite on the draws that are named."""

    class Diverging(Learner[Any]):
        """Diverges."""

        calls = 0

        def learn(self, bench: Bench, lr: float | None, options: Any) -> Learned:
            number = type(self).calls
            type(self).calls += 1
            trace = bench.zero_shot
            if number in BAD:
                trace = replace(trace, label_logprobs=trace.label_logprobs * math.nan)
            return Learned(trace)

    LEARNERS.register("diverging")(Diverging)
    yield "diverging"
    LEARNERS.remove("diverging")


def bench() -> Bench:
    return tiny_bench(shots=8, balanced=True, task=tiny_task(n=200))


def test_a_draw_that_diverges_is_named_and_the_others_go_on(diverging: str) -> None:
    BAD.clear()
    BAD.update({2, 11})
    found = ResponseBench(bench(), draws=12).on_draws(LearnerSpec(diverging))
    assert [draw.index for draw in found.draws] == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(found.traces) == 10
    assert list(found.failed) == ["draw 2 (chance)", "draw 11 (half)"]
    assert "5 queries are not finite" in found.failed["draw 2 (chance)"]


def test_too_many_failed_draws_fail_the_learner(diverging: str) -> None:
    BAD.clear()
    BAD.update({0, 1, 2})
    with pytest.raises(NotFiniteError, match=r"diverging fails on 3 of 12 draws \(draw 0 \(chance\)"):
        ResponseBench(bench(), draws=12).on_draws(LearnerSpec(diverging))


def test_every_draw_is_learned_from_as_if_it_were_the_lesson() -> None:
    here = bench()
    responding = ResponseBench(here, draws=8)
    gd = LearnerSpec("gd", rate=0.3)
    for learning in (IN_CONTEXT, gd):
        found = responding.on_draws(learning)
        for draw, trace in zip(found.draws, found.traces, strict=True):
            alone = Bench(here.model, draw.lesson).result(learning).trace
            torch.testing.assert_close(trace.attn_out, alone.attn_out, rtol=0, atol=1e-12)
            torch.testing.assert_close(trace.label_logprobs, alone.label_logprobs, rtol=0, atol=1e-12)


def test_a_plant_is_the_changed_model_after_a_context_without_labels() -> None:
    here = bench()
    found = ResponseBench(here, draws=8).on_draws(LearnerSpec("gd", rate=0.3), plant=True)
    assert found.planted is not None
    model, draw = here.model, found.draws[3]
    learned = Bench(model, draw.lesson).result(LearnerSpec("gd", rate=0.3)).learned
    assert learned.change is not None
    torch.testing.assert_close(
        found.planted[3].attn_out, planted(here, learned.change).attn_out, rtol=0, atol=1e-12
    )
    before = model.read(here.lesson, model.prefix(unlabelled(here.lesson)))
    assert not torch.allclose(found.planted[3].attn_out, before.attn_out)
    after = model.read(here.lesson, model.prefix(unlabelled(here.lesson)))
    torch.testing.assert_close(before.attn_out, after.attn_out, rtol=0, atol=0)


def test_what_cannot_be_planted_says_why() -> None:
    assert cannot_be_planted(LearnerSpec("gd", rate=1.0)) == ""
    assert "changes neither weights nor activations" in cannot_be_planted(LearnerSpec("probe"))
    assert "in a way of its own" in cannot_be_planted(LearnerSpec("gd-linearized", rate=1.0))
    assert "under a control" in cannot_be_planted(LearnerSpec("gd", "random-labels", rate=1.0))
    with pytest.raises(InputError, match="cannot be planted"):
        ResponseBench(bench(), draws=8).on_draws(LearnerSpec("probe"), plant=True)
