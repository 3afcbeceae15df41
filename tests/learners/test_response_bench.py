"""Learners on every draw: what diverges is named and left out, what cannot be planted is said."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError, NotFiniteError
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.descent.changes_of_draws import DrawsBeside
from dualscope.learners import LEARNERS, Bench, Learned, Learner
from dualscope.learners.gradient.gd import Gd
from dualscope.learners.null_learners import unlabelled
from dualscope.learners.plants import planted
from dualscope.learners.response_bench import OnDraws, ResponseBench, cannot_be_planted
from dualscope.models.model import Model
from dualscope.models.reading.trace import Trace
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


def four_draws(bench: Bench) -> ResponseBench:
    """Every other one of eight, which is the fewest that there can be: enough to be mixed up."""
    responding = ResponseBench(bench, draws=8)
    responding.draws = responding.draws[::2]
    return responding


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
    responding = four_draws(here)
    gd = LearnerSpec("gd", lr=0.3)
    for learning in (IN_CONTEXT, gd):
        found = responding.on_draws(learning)
        for draw, trace in zip(found.draws, found.traces, strict=True):
            alone = Bench(here.model, draw.lesson).result(learning).trace
            torch.testing.assert_close(trace.attn_out, alone.attn_out, rtol=0, atol=1e-12)
            torch.testing.assert_close(trace.label_logprobs, alone.label_logprobs, rtol=0, atol=1e-12)


def test_a_plant_is_the_changed_model_after_a_context_without_labels() -> None:
    here = bench()
    found = ResponseBench(here, draws=8).on_draws(LearnerSpec("gd", lr=0.3), plant=True)
    assert found.planted is not None
    model, draw = here.model, found.draws[3]
    learned = Bench(model, draw.lesson).result(LearnerSpec("gd", lr=0.3)).learned
    assert learned.change is not None
    torch.testing.assert_close(found.planted[3].attn_out, planted(here, learned.change).attn_out, rtol=0, atol=1e-12)
    before = model.read(here.lesson, model.prefix(unlabelled(here.lesson)))
    assert not torch.allclose(found.planted[3].attn_out, before.attn_out)
    after = model.read(here.lesson, model.prefix(unlabelled(here.lesson)))
    torch.testing.assert_close(before.attn_out, after.attn_out, rtol=0, atol=0)


def test_what_cannot_be_planted_says_why() -> None:
    assert cannot_be_planted(LearnerSpec("gd", lr=1.0)) == ""
    assert "changes neither weights nor activations" in cannot_be_planted(LearnerSpec("probe"))
    assert "in a way of its own" in cannot_be_planted(LearnerSpec("gd-linearized", lr=1.0))
    assert "under a control" in cannot_be_planted(LearnerSpec("gd", "random-labels", lr=1.0))
    with pytest.raises(InputError, match="cannot be planted"):
        ResponseBench(bench(), draws=8).on_draws(LearnerSpec("probe"), plant=True)


# Several draws at once

LABELS = {"equal": ("good", "bad"), "unequal": ("Negative", "Very Positive")}
TOGETHER: dict[str, LearnerSpec] = {
    "gd": LearnerSpec("gd", lr=0.3),
    "gd, two epochs of the whole batch": LearnerSpec.of("gd", {"full_batch": True, "epochs": 2}, lr=0.3),
    "gd, one layer's values": LearnerSpec.of(
        "gd", {"loss": "label", "parameters": "v", "biases": False, "layers": [1]}, lr=0.3
    ),
    "gd in another order": LearnerSpec("gd", "reorder", lr=0.3),
    "lcgd": LearnerSpec("lcgd", lr=0.3),
    "lcgd, layer after layer": LearnerSpec.of("lcgd", {"schedule": "sequential"}, lr=0.3),
    "lcgd, token by token": LearnerSpec.of(
        "lcgd", {"readout": "attention", "space": "labels", "granularity": "token"}, lr=0.3
    ),
    "lcgd, two layers deep": LearnerSpec.of("lcgd", {"depth": 2}, lr=0.3),
    "lcgd, through shortcuts": LearnerSpec.of("lcgd", {"readout": "shortcut"}, lr=0.3),
    "gd, on layers of its choice": LearnerSpec.of("gd-layers", {"lr": 0.3, "layers": [0, 2]}),
    "gd-all": LearnerSpec("gd-all", lr=0.03),
    "gd-linearized": LearnerSpec("gd-linearized", lr=0.3),
    "lcgd-matched": LearnerSpec("lcgd-matched", lr=0.3),
    "gd-matched": LearnerSpec("gd-matched", lr=0.3),
    "in-context": IN_CONTEXT,
    "in-context, labels in places": LearnerSpec("in-context", "places"),
}


def one_by_one(responding: ResponseBench, learning: LearnerSpec, plant: bool = False) -> OnDraws:
    """The oracle: every draw as if it were alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResponseBench, "_together", lambda *_: None)
        return responding.on_draws(learning, plant)


def furthest(left: Sequence[Trace], right: Sequence[Trace]) -> float:
    """The largest difference of any number of any trace; what is NaN has to be so in both."""
    assert len(left) == len(right) > 0
    found = 0.0
    for one, other in zip(left, right, strict=True):
        assert one.query_ids == other.query_ids
        for name in ("attn_out", "attn_scores", "residual", "label_logprobs"):
            pair = getattr(one, name), getattr(other, name)
            assert torch.equal(*(values.isnan() for values in pair))
            found = max(found, float((pair[0] - pair[1]).nan_to_num(0.0).abs().max()))
    return found


@pytest.mark.parametrize(
    ("family", "labels"),
    [
        ("gpt2", "unequal"),
        ("llama", "equal"),
        pytest.param("gpt2", "equal", marks=pytest.mark.slow),
        pytest.param("llama", "unequal", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", TOGETHER)
def test_draws_at_once_are_draws_one_by_one(name: str, family: str, labels: str) -> None:
    task, learning = tiny_task(n=200, labels=LABELS[labels]), TOGETHER[name]
    here = tiny_bench(family, shots=8, balanced=True, task=task)
    responding = four_draws(here)
    plant = not cannot_be_planted(learning)
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        read = Model.read_draws
        patch.setattr(
            Model,
            "read_draws",
            lambda *a, **more: seen.append(a[2]) or read(*a, **more),  # type: ignore[func-returns-value]
        )
        together = responding.on_draws(learning, plant)
    assert seen == ([4, 4] if plant else [4])
    alone = one_by_one(responding, learning, plant)
    assert together.draws == alone.draws
    assert together.notes == ()
    assert furthest(together.traces, alone.traces) <= 1e-10
    spread = together.traces[0].label_logprobs - together.traces[1].label_logprobs
    assert spread.abs().max() > 1e-4, "draws differ, so that mixing them up would show"
    if plant:
        assert together.planted is not None
        assert alone.planted is not None
        assert furthest(together.planted, alone.planted) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "mistral", "bloom", "falcon", "xglm", "gpt_neox", "phi3", "mpt"])
@pytest.mark.parametrize("name", ["gd", "lcgd", "gd-all", "gd-linearized", "in-context"])
def test_other_architectures_draws_at_once(name: str, family: str) -> None:
    here = tiny_bench(family, shots=8, balanced=True, task=tiny_task(n=200))
    responding, learning = four_draws(here), TOGETHER[name]
    plant = not cannot_be_planted(learning)
    together, alone = responding.on_draws(learning, plant), one_by_one(responding, learning, plant)
    assert furthest(together.traces, alone.traces) <= 1e-10
    if together.planted is not None and alone.planted is not None:
        assert furthest(together.planted, alone.planted) <= 1e-10


def test_flipped_labels_of_unequal_length_give_contexts_that_do_not_fit_side_by_side() -> None:
    responding = ResponseBench(bench(), "flip-one")
    lengths = {len(draw.lesson.context) for draw in responding.draws}
    assert len(lengths) == 2
    for learning in (IN_CONTEXT, LearnerSpec("gd", lr=0.3)):
        together, alone = responding.on_draws(learning), one_by_one(responding, learning)
        assert furthest(together.traces, alone.traces) <= 1e-10


def test_other_orders_at_once() -> None:
    responding = ResponseBench(bench(), "reorder", draws=4)
    for learning in (IN_CONTEXT, LearnerSpec("gd", lr=0.3), LearnerSpec("lcgd", lr=0.3)):
        together, alone = responding.on_draws(learning), one_by_one(responding, learning)
        assert furthest(together.traces, alone.traces) <= 1e-10


def test_a_draw_that_diverges_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    responding, learning = ResponseBench(bench(), draws=10), LearnerSpec("gd", lr=0.3)
    alone = one_by_one(responding, learning, plant=True)
    move, steps = DrawsBeside.move, iter(range(100))

    def poisoned(weights: DrawsBeside, direction: Any, size: float = 1.0) -> None:
        move(weights, direction, size)
        if next(steps) == 2:
            for change in weights.changes.values():
                change[3] = math.inf

    monkeypatch.setattr(DrawsBeside, "move", poisoned)
    found = responding.on_draws(learning, plant=True)
    assert list(found.failed) == ["draw 3 (chance)"]
    assert [draw.index for draw in found.draws] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    kept = [trace for i, trace in enumerate(alone.traces) if i != 3]
    assert furthest(found.traces, kept) <= 1e-10
    assert found.planted is not None
    assert alone.planted is not None
    assert furthest(found.planted, [trace for i, trace in enumerate(alone.planted) if i != 3]) <= 1e-10


@pytest.mark.parametrize("learning", [IN_CONTEXT, LearnerSpec("gd", lr=0.3)])
def test_fewer_draws_at_once_where_memory_is_short(learning: LearnerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    responding, read = ResponseBench(bench(), draws=8), Model.read_draws
    seen: list[int] = []

    def short(model: Model, lesson: Any, draws: int, *rest: Any, **more: Any) -> list[Trace]:
        seen.append(draws)
        if draws > 2:
            raise MemoryError
        return read(model, lesson, draws, *rest, **more)

    alone = one_by_one(responding, learning)
    monkeypatch.setattr(Model, "read_draws", short)
    found = responding.on_draws(learning)
    assert seen == [8, 4, 2, 2, 4, 2, 2]
    assert found.notes[0] == "memory was short: 4 draws were learned from at once in place of 8"
    assert furthest(found.traces, alone.traces) <= 1e-10


def test_other_errors_are_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> list[Trace]:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Model, "read_draws", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        ResponseBench(bench(), draws=8).on_draws(IN_CONTEXT)


def test_a_learner_made_from_another_is_not_taken_for_it() -> None:
    class Halved(Gd):
        """A learner of one's own that says nothing of several draws."""

        def learn(self, bench: Bench, lr: float | None, options: Any) -> Learned:
            return super().learn(bench, self.given_lr(lr) / 2, options)

    LEARNERS.register("halved")(Halved)
    try:
        responding = ResponseBench(bench(), draws=8)
        found = responding.on_draws(LearnerSpec("halved", lr=0.6))
        assert furthest(found.traces, responding.on_draws(LearnerSpec("gd", lr=0.3)).traces) <= 1e-10
    finally:
        LEARNERS.remove("halved")
