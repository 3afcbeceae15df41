"""The choice of a learning rate: on examples that nothing else uses, with the whole curve kept."""

from dataclasses import replace

import pytest
import torch

from dualscope.choosing import halving
from dualscope.choosing.halving import GRID, RATES
from dualscope.core.errors import InputError
from dualscope.learners import choose_settings
from dualscope.learners.chosen_settings import benches_of
from dualscope.learners.gradient.gd import Gd
from dualscope.models import Model
from dualscope.tasks import Episode, Task
from tests.learners import oracle
from tests.learners.setting import Rows, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading


def test_the_rate_that_answers_best(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = wrapped("gpt2", torch.float32), tiny_task(n=240)
    monkeypatch.setattr(Gd, "candidates", lambda *_: [{"lr": lr} for lr in (0.01, 0.3, 1.0)])
    monkeypatch.setattr(Gd, "rounds", lambda *_: replace(RATES, examples=(25, 60)))
    choice = choose_settings(model, task, "gd", seeds=[0, 1], shots=3, queries=10)
    assert choice.n == 2 * 60
    assert [(row.get("lr"), row["seed"]) for row in choice.curve] == [
        (lr, seed) for seed in (0, 1) for lr in (None, 0.01, 0.3, 1.0)
    ]
    ranks = {}
    for lr in (0.01, 0.3, 1.0):
        rows = [row for row in choice.curve if row.get("lr") == lr]
        ranks[lr] = (-sum(r["accuracy"] for r in rows) / 2, sum(r["nll"] for r in rows) / 2)
    assert choice.settings["lr"] == min(ranks, key=lambda lr: ranks[lr])
    assert choice.at_edge == (choice.settings["lr"] != 0.3)
    # One point of the curve by hand: the study's own demonstrations, other queries.
    lesson = tiny_lesson(model, shots=3, queries=10, seed=1, task=task)
    moved = oracle.gd(model.hf.double(), lesson, 0.3)
    episodes = [Episode.draw(task, 3, seed, 10) for seed in (0, 1)]
    used = {example.id for episode in episodes for example in (*episode.demonstrations, *episode.queries)}
    (bench,) = benches_of(model, task, (0, 1), 3, 10, False, "same", "gold", only=1)
    right = 0
    for example in bench.spare[:60]:
        assert example.id not in used
        prompt = model.tokenizer(task.prompt(example), add_special_tokens=False)["input_ids"]
        scores, _ = reading._labels(moved.hf, lesson, [*lesson.bos, *prompt], 0)
        right += int(scores.argmax() == example.label)
    row = next(row for row in choice.curve if row.get("lr") == 0.3 and row["seed"] == 1)
    assert row["accuracy"] == pytest.approx(right / 60)


def test_rates_that_cannot_be_chosen_and_that_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GRID[0] == 1e-4
    assert GRID[-1] == 10
    assert len(GRID) == 11
    model = wrapped("gpt2", torch.float32)
    with pytest.raises(InputError, match=r"17 are left; give the setting yourself \(a learning rate with --lr 0.1\)"):
        choose_settings(model, tiny_task(), "gd", seeds=[0], shots=3, queries=5)
    # A rate that blows the model up is not chosen, whatever its NaNs would be taken for.
    task = tiny_task(n=240)
    assert isinstance(task.source, Rows)
    task.source.table[60]["text"] = "film " * 1000
    monkeypatch.setattr(Gd, "candidates", lambda *_: [{"lr": lr} for lr in (0.1, 1e30)])
    choice = choose_settings(model, task, "ft", seeds=[0], shots=3, queries=5)
    assert choice.settings == {"lr": 0.1}
    assert choice.at_edge
    assert choice.curve[-1]["accuracy"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["embedded-sst2", "embedded-trec", "embedded-agnews"])
def test_halving_chooses_what_the_whole_grid_would(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, drawn = Model.load("embedded", device="cpu"), Task.load(task)
    quick = choose_settings(model, drawn, "gd", seeds=[0], shots=16, queries=20)
    monkeypatch.setattr(Gd, "rounds", lambda *_: replace(halving.RATES, fewest=len(GRID)))
    whole = choose_settings(model, drawn, "gd", seeds=[0], shots=16, queries=20)
    assert quick.settings == whole.settings
    assert sum(row["n"] for row in quick.curve) < 0.5 * sum(row["n"] for row in whole.curve)
