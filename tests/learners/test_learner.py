"""What a learner is: on a model that really learns, turning every label round turns round what is preferred."""

import pytest
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.learners import LEARNERS, Bench, Learner, Options
from dualscope.models.model import Model
from dualscope.models.reading.trace import Trace
from dualscope.tasks import Episode, Task, make_lesson

RATE = 1.0  # the one that the model's card records for this task


def preference(trace: Trace) -> Tensor:
    """For the gold label of each query over the other one."""
    gold = trace.labels[:, None]
    return (trace.label_logprobs.gather(1, gold) - trace.label_logprobs.gather(1, 1 - gold)).squeeze(1)


@pytest.fixture(scope="module")
def benches() -> dict[str, Bench]:
    """The same demonstrations under their own and under the other labels."""
    model = Model.load("embedded", device="cpu")
    found = {}
    for labels in ("gold", "flipped"):
        episode = Episode.draw(Task.load("embedded-sst2"), shots=32, queries=20, demo_labels=labels)
        found[labels] = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    return found


@pytest.mark.parametrize("learner", ["in-context", "gd", "lcgd"])
def test_flipped_labels_flip_the_preference(benches: dict[str, Bench], learner: str) -> None:
    before = preference(benches["gold"].zero_shot)
    gold, flipped = (preference(benches[labels].learned(learner, RATE).trace) for labels in ("gold", "flipped"))
    assert (gold - before).mean() > 1
    assert (flipped - before).mean() < -1
    assert flipped.mean() < 0 < gold.mean()


def test_a_learner_that_cannot_learn_is_refused(forget: None) -> None:
    with pytest.raises(InputError, match=r"learner 'idle' has no method learn\(bench, lr, options\)"):

        @LEARNERS.register("idle")
        class Idle(Learner[Options]):
            """Has no method of its own."""

    assert "idle" not in LEARNERS
