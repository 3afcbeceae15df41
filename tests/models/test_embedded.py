"""The shipped checkpoint does what its card says."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import dualscope.models
from dualscope.learners import Bench
from dualscope.models import Model, Trace
from dualscope.studies.resolve import recorded_rates
from dualscope.tasks import Episode, Task, catalog_names, make_lesson

FOLDER = Path(dualscope.models.__file__).parent / "embedded"
TASKS = [name for name in catalog_names() if name.startswith("embedded-")]
TOLERANCE = 0.03


@cache
def card() -> dict[str, Any]:
    """The card's head, which says the same as its tables."""
    _, head, _ = (FOLDER / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(head)
    return found


def accuracy(trace: Trace) -> float:
    return float((trace.predictions == trace.labels).double().mean())


@pytest.mark.parametrize("name", ["embedded-sst2", "embedded-trec"])
def test_the_cards_figures(name: str) -> None:
    check = card()["check"]
    model = Model.load("embedded", device="cpu")
    episode = Episode.draw(Task.load(name), check["shots"], check["seed"], check["queries"])
    bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    found = {
        "zero-shot": accuracy(bench.zero_shot),
        "in-context": accuracy(bench.in_context),
        "gd": accuracy(bench.learned("gd", card()["rates"][name]).trace),
    }
    assert found == pytest.approx(check["accuracy"][name], abs=TOLERANCE)
    assert bench.lesson.shots_used == 32


def test_every_embedded_task_has_a_recorded_rate() -> None:
    rates = recorded_rates(["embedded"], TASKS)
    assert rates == {("embedded", name): card()["rates"][name] for name in TASKS}


def test_it_is_small_and_in_half_precision() -> None:
    from safetensors import safe_open

    file = FOLDER / "model.safetensors"
    assert file.stat().st_size <= 8 * 2**20
    with safe_open(file, "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118


def test_the_card_says_what_it_is_not() -> None:
    said = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    assert "says nothing about large language models" in said
