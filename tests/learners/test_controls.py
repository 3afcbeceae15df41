"""Learners under a control: what they are taught, or what they changed, is not theirs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.learners.altered_lessons import relabelled
from dualscope.tasks import Episode
from dualscope.tasks.lesson import DemonstrationTokens, Lesson
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_task

LR = 0.3


def test_taught_the_wrong_thing() -> None:
    bench = tiny_bench(other=True, shots=6)
    for name, training in (
        ("gd/random-labels", relabelled(bench.lesson, 1000).training),
        ("gd/other-task", bench.other.training),
    ):
        wrong = Bench(bench.model, _teaching(bench, training))
        learned = bench.learned(name, LR)
        expected = wrong.learned("gd", LR)
        assert learned.delta is not None
        assert expected.delta is not None
        assert oracle.worst(learned.delta, dict(expected.delta)) == 0
        plain = bench.learned("gd", LR).delta
        assert plain is not None
        assert oracle.worst(learned.delta, dict(plain)) > 1e-3
    random = [taught.label_index for taught in relabelled(bench.lesson, 1000).training]
    episode = Episode.draw(tiny_task(), 6, 0, 5, demo_labels="random")
    assert random == list(episode.labels("gd"))
    with pytest.raises(InputError, match="lesson of another task"):
        tiny_bench().learned("gd/other-task", LR)


@pytest.mark.parametrize("learner", ["gd", "lcgd", "gd-linearized"])
def test_prompts_without_labels(learner: str) -> None:
    """As if the demonstrations ended where their labels begin; which they were makes no difference."""
    bench = tiny_bench("llama", shots=4)
    prompts = tuple(replace(taught, label=()) for taught in bench.lesson.training)
    wanted = Bench(bench.model, _teaching(bench, prompts)).learned(learner, LR)
    found = bench.learned(f"{learner}/unlabelled", LR)
    assert found.delta is not None
    assert wanted.delta is not None
    assert oracle.worst(found.delta, dict(wanted.delta)) == 0
    flipped = tuple(replace(taught, label=bench.lesson.answers[1 - taught.label_index]) for taught in prompts)
    other = Bench(bench.model, _teaching(bench, flipped)).learned(f"{learner}/unlabelled", LR)
    assert other.delta is not None
    assert oracle.worst(other.delta, dict(found.delta)) == 0
    plain = bench.learned(learner, LR).delta
    assert plain is not None
    assert oracle.worst(found.delta, dict(plain)) > 1e-3


@pytest.mark.parametrize(
    ("learner", "options", "said"),
    [
        ("probe", {"lr": 0.1}, "only gradient descent can be taught prompts without labels"),
        ("in-context", {}, "take null-context"),
        ("gd", {"lr": LR, "loss": "label"}, "its loss is of the labels alone"),
        ("lcgd", {"lr": LR, "space": "labels"}, "its loss is of the labels alone"),
    ],
)
def test_who_needs_labels_says_so(learner: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tiny_bench().learned(f"{learner}/unlabelled", **options)


def _teaching(bench: Bench, training: tuple[DemonstrationTokens, ...]) -> Lesson:

    return replace(bench.lesson, training=training)


def test_random_update() -> None:
    bench = tiny_bench("llama")
    gd = bench.learned("gd", LR).delta
    one, two = (bench.learned("gd/random-update", LR, draw=d) for d in (0, 1))
    assert gd is not None
    assert one.delta is not None
    assert two.delta is not None
    torch.testing.assert_close(one.delta.norms(), gd.norms())
    flat = [torch.cat([c.flatten() for c in d.values()]) for d in (gd, one.delta, two.delta)]
    cosines = [torch.nn.functional.cosine_similarity(flat[i], flat[j], 0) for i, j in ((0, 1), (1, 2))]
    assert max(abs(float(c)) for c in cosines) < 0.1
    with one.delta.applied(bench.model):
        assert torch.equal(bench.model.read(bench.lesson).attn_out, one.trace.attn_out)
