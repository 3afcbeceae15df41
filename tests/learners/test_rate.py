"""The choice of a learning rate: on examples that nothing else uses, with the whole curve kept."""

import pytest
import torch

from dualscope.core import halving
from dualscope.core.errors import InputError
from dualscope.core.halving import GRID
from dualscope.learners import choose_rate
from dualscope.models import Model
from dualscope.tasks import Episode, Task
from tests.learners import oracle
from tests.learners.setting import Rows, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading


def test_choose_rate() -> None:
    model = wrapped("gpt2", torch.float32)
    task = tiny_task(n=140)
    choice = choose_rate(model, task, seeds=[0, 1], shots=3, queries=10, grid=(0.01, 0.3, 1.0), limit=60)
    assert choice.n == 60
    assert [(row["lr"], row["seed"]) for row in choice.curve] == [
        (lr, seed) for seed in (0, 1) for lr in (0.0, 0.01, 0.3, 1.0)
    ]
    ranks = {}
    for lr in (0.01, 0.3, 1.0):
        rows = [row for row in choice.curve if row["lr"] == lr]
        ranks[lr] = (-sum(r["accuracy"] for r in rows) / 2, sum(r["nll"] for r in rows) / 2)
    assert choice.rate == min(ranks, key=lambda lr: ranks[lr])
    assert choice.at_edge == (choice.rate != 0.3)
    # One point of the curve by hand: the study's own demonstrations, other queries.
    episode = Episode.draw(task, 3, 1, 10)
    used = {e.id for seed in (0, 1) for e in Episode.draw(task, 3, seed, 10).demonstrations}
    lesson = tiny_lesson(model, shots=3, queries=10, seed=1, task=task)
    moved = oracle.gd(model.hf.double(), lesson, 0.3)
    spare = [e for e in task.train if e.id not in used]
    assert len(episode.queries) == 10
    right = total = 0
    from dualscope.tasks import spare as left

    for example in left(task, [Episode.draw(task, 3, s, 10) for s in (0, 1)], 60):
        assert example in spare
        prompt = model.tokenizer(task.prompt(example), add_special_tokens=False)["input_ids"]
        scores, _ = reading._labels(moved.hf, lesson, [*lesson.bos, *prompt], 0)
        right += int(scores.argmax() == example.label)
        total += 1
    row = next(row for row in choice.curve if row["lr"] == 0.3 and row["seed"] == 1)
    assert row["accuracy"] == pytest.approx(right / total)


def test_choose_rate_edges() -> None:
    assert GRID[0] == 1e-4
    assert GRID[-1] == 10
    assert len(GRID) == 11
    model = wrapped("gpt2", torch.float32)
    with pytest.raises(InputError, match=r"17 are left; give a rate yourself \(lr: 0.1\)"):
        choose_rate(model, tiny_task(), seeds=[0], shots=3, queries=5)
    # A rate that blows the model up is not chosen, whatever its NaNs would be taken for.
    task = tiny_task(n=140)
    assert isinstance(task.source, Rows)
    task.source.table[60]["text"] = "film " * 1000
    choice = choose_rate(model, task, seeds=[0], shots=3, queries=5, grid=(0.1, 1e30), limit=50)
    assert choice.rate == 0.1
    assert choice.at_edge
    assert choice.curve[-1]["accuracy"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["embedded-sst2", "embedded-trec", "embedded-agnews"])
def test_halving_chooses_what_the_whole_grid_would(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, drawn = Model.load("embedded", device="cpu"), Task.load(task)
    quick = choose_rate(model, drawn, seeds=[0], shots=16, queries=20)
    monkeypatch.setattr(halving, "FEWEST", len(GRID))
    whole = choose_rate(model, drawn, seeds=[0], shots=16, queries=20)
    assert quick.rate == whole.rate
    assert sum(row["n"] for row in quick.curve) < 0.5 * sum(row["n"] for row in whole.curve)
