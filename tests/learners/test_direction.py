"""On a model that really learns: turning every label round turns round what is preferred."""

from dataclasses import replace

import pytest
from torch import Tensor

from dualscope.learners import Bench
from dualscope.models.model import Model
from dualscope.models.trace import Trace
from dualscope.tasks import Episode, Task, make_lesson


def preference(trace: Trace) -> Tensor:
    """For the gold label of each query over the other one."""
    gold = trace.labels[:, None]
    return (trace.label_logprobs.gather(1, gold) - trace.label_logprobs.gather(1, 1 - gold)).squeeze(1)


@pytest.fixture(scope="module")
def embedded() -> Model:
    return Model.load("embedded", device="cpu")


@pytest.fixture(scope="module")
def benches(embedded: Model) -> dict[str, Bench]:
    """The same demonstrations under their own and under the other labels. Queries: themselves, then new ones."""
    found = {}
    for labels in ("gold", "flipped"):
        episode = Episode.draw(Task.load("embedded-sst2"), shots=8, queries=20, demo_labels=labels)  # type: ignore[arg-type]
        episode = replace(episode, queries=episode.demonstrations + episode.queries)
        found[labels] = Bench(embedded, make_lesson(episode, embedded.tokenizer, embedded.max_positions))
    return found


def test_in_context(benches: dict[str, Bench]) -> None:
    before = preference(benches["gold"].zero_shot)
    gold, flipped = (preference(benches[labels].in_context) for labels in ("gold", "flipped"))
    assert (gold - before)[8:].mean() > 1
    assert (flipped - before)[8:].mean() < -1


@pytest.mark.parametrize("name", ["gd", "lcgd"])
def test_gradient_descent(benches: dict[str, Bench], name: str) -> None:
    """On what it was taught: this model's weights know no words' meaning that new queries could share."""
    before = preference(benches["gold"].zero_shot)
    traces = [
        benches[labels].learned(name, 0.03, epochs=10, loss="label").trace for labels in ("gold", "flipped")
    ]
    gold, flipped = (preference(trace)[:8] for trace in traces)
    assert (gold - before[:8]).mean() > 1
    assert (flipped - before[:8]).mean() < -1
    assert (gold > flipped).all()
