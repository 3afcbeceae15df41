"""Draws: exactly as the design says, the same every time, and the same for both learners."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope import InputError, Task
from dualscope.tasks import Episode, Example, TaskConfig, spare
from dualscope.tasks.sources import DataRow

LABELS = ["low", "middle", "high"]


class Rows:
    """A source in memory, for tasks of any size."""

    def __init__(self, labels: list[int]) -> None:
        self.labels = labels

    def rows(self, split: str) -> list[DataRow]:
        return [{"text": f"{split} {i}", "label": label} for i, label in enumerate(self.labels)]

    def file(self, split: str) -> None:
        return None

    def where(self, split: str) -> str:
        return split


def make_task(labels: list[int], evaluation: str = "test") -> Task:
    config = TaskConfig.model_validate(
        {
            "name": "made",
            "source": {"files": {"train": "train.csv", "test": "test.csv"}},
            "splits": {"train": "train", "evaluation": evaluation},
            "template": "{text} Label:",
            "labels": LABELS,
        }
    )
    return Task(config, Rows(labels))


labels = st.lists(st.integers(0, 2), min_size=2, max_size=60)
seeds = st.integers(0, 2**32)
corruptions = st.sampled_from(["gold", "flipped", "random"])
sides = st.sampled_from(["both", "icl", "gd"])


@given(labels, seeds, st.integers(0, 5), corruptions, sides, st.data())
def test_same_seed_same_episode(labels: Any, seed: int, order: Any, demo_labels: Any, corrupt: Any, data: Any) -> None:
    shots = data.draw(st.integers(1, len(labels)))
    options = {"shots": shots, "seed": seed, "order": order, "demo_labels": demo_labels, "corrupt": corrupt}
    one, two = (Episode.draw(make_task(labels), **options) for _ in range(2))
    assert one.demonstrations == two.demonstrations
    assert one.queries == two.queries
    assert one.labels("icl") == two.labels("icl")
    assert one.labels("gd") == two.labels("gd")
    assert one.provenance() == two.provenance()


@given(labels, seeds, st.data())
def test_draws_are_the_published_ones(labels: Any, seed: int, data: Any) -> None:
    shots = data.draw(st.integers(1, len(labels)))
    limit = data.draw(st.integers(1, 70))
    episode = Episode.draw(make_task(labels), shots=shots, seed=seed, queries=limit)
    order = np.random.default_rng(seed).permutation(len(labels))
    assert [e.id for e in episode.demonstrations] == [f"train:{i}" for i in order[:shots]]
    order = np.random.default_rng(1).permutation(len(labels))
    assert [e.id for e in episode.queries] == [f"test:{i}" for i in order[:limit]]


def test_draws_are_those_of_the_datasets_library(tiny_task: Task) -> None:
    datasets = pytest.importorskip("datasets")
    shuffled = datasets.Dataset.from_dict({"row": list(range(len(tiny_task.train)))}).shuffle(seed=5)
    episode = Episode.draw(tiny_task, shots=32, seed=5)
    assert [e.id for e in episode.demonstrations] == [f"train:{i}" for i in shuffled["row"][:32]]


@given(labels, seeds, st.data())
def test_one_split_for_both_never_overlaps(labels: Any, seed: int, data: Any) -> None:
    shots = data.draw(st.integers(1, len(labels) - 1))
    task = make_task(labels, evaluation="train")
    episode = Episode.draw(task, shots=shots, seed=seed)
    demonstrations = {e.id for e in episode.demonstrations}
    queries = {e.id for e in episode.queries}
    assert not demonstrations & queries
    assert len(demonstrations | queries) == len(labels)


@given(labels, seeds, st.integers(1, 9), st.data())
def test_an_order_rearranges_and_changes_nothing_else(labels: Any, seed: int, order: Any, data: Any) -> None:
    shots = data.draw(st.integers(1, len(labels)))
    task = make_task(labels)
    drawn = Episode.draw(task, shots=shots, seed=seed, demo_labels="random")
    ordered = Episode.draw(task, shots=shots, seed=seed, order=order, demo_labels="random")
    assert ordered.queries == drawn.queries
    shown = dict(zip((e.id for e in drawn.demonstrations), drawn.labels("icl"), strict=True))
    assert {e.id for e in ordered.demonstrations} == set(shown)
    assert ordered.labels("icl") == tuple(shown[e.id] for e in ordered.demonstrations)
    expected = np.random.default_rng([seed, 2, order]).permutation(shots)
    assert ordered.demonstrations == tuple(drawn.demonstrations[i] for i in expected)


def test_an_explicit_order(tiny_task: Task) -> None:
    drawn = Episode.draw(tiny_task, shots=3)
    turned = Episode.draw(tiny_task, shots=3, order=[2, 1, 0])
    assert turned.demonstrations == drawn.demonstrations[::-1]
    assert turned.provenance()["order"] == [2, 1, 0]


@given(labels, seeds, st.data())
def test_balanced_draws(labels: Any, seed: int, data: Any) -> None:
    fewest = min(labels.count(c) for c in range(3))
    if not fewest:
        return
    shots = data.draw(st.integers(1, 3 * fewest))
    episode = Episode.draw(make_task(labels), shots=shots, seed=seed, balanced=True)
    counts = [[e.label for e in episode.demonstrations].count(c) for c in range(3)]
    assert sum(counts) == shots
    assert max(counts) - min(counts) <= 1


@given(labels, seeds, sides, st.data())
def test_corruption_touches_only_the_side_that_was_asked(labels: Any, seed: int, corrupt: Any, data: Any) -> None:
    shots = data.draw(st.integers(1, len(labels)))
    task = make_task(labels)
    for demo_labels in ("flipped", "random"):
        episode = Episode.draw(task, shots=shots, seed=seed, demo_labels=demo_labels, corrupt=corrupt)
        gold = tuple(e.label for e in episode.demonstrations)
        flipped = tuple((label + 1) % 3 for label in gold)
        random = tuple(np.random.default_rng([seed, 1]).integers(3, size=shots).tolist())
        corrupted = flipped if demo_labels == "flipped" else random
        assert episode.labels("icl") == (gold if corrupt == "gd" else corrupted)
        assert episode.labels("gd") == (gold if corrupt == "icl" else corrupted)


@settings(max_examples=20)
@given(st.lists(seeds, min_size=1, max_size=3), st.integers(1, 30), st.booleans())
def test_spare_examples_are_nobodys(seeds: Any, shots: int, same_split: bool) -> None:
    task = make_task([0, 1, 2] * 20, evaluation="train" if same_split else "test")
    episodes = [Episode.draw(task, shots=shots, seed=seed, queries=10) for seed in seeds]
    left = spare(task, episodes, limit=15)
    used = {e.id for episode in episodes for e in (*episode.demonstrations, *episode.queries)}
    assert not used & {e.id for e in left}
    assert len(left) == min(15, len({e.id for e in task.train} - used))
    assert left == spare(task, episodes, limit=15)


def test_the_whole_of_provenance_is_json(tiny_task: Task) -> None:
    told = json.loads(json.dumps(Episode.draw(tiny_task, shots=4, seed=3, demo_labels="random").provenance()))
    assert len(told["demonstrations"]) == len(told["labels_icl"]) == len(told["labels_gd"]) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shots": 61}, "61 shots were asked for, and the split 'train' has 60 examples"),
        ({"shots": 0}, "shots must be at least 1, found 0"),
        ({"queries": 0}, "queries must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"shots": 3, "order": [0, 0, 1]}, "order must be a permutation of 0 to 2"),
        ({"order": -1}, "order must be 0"),
        ({"demo_labels": "wrong"}, "demo_labels: 'wrong' is not accepted; accepted: gold, flipped, random"),
        ({"corrupt": "nobody"}, "accepted: both, icl, gd"),
    ],
)
def test_impossible_draws(tiny_task: Task, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Episode.draw(tiny_task, **options)


def test_impossible_balance() -> None:
    with pytest.raises(InputError, match=r"2 or more of every class .* high 1"):
        Episode.draw(make_task([0, 0, 0, 1, 1, 1, 2]), shots=6, balanced=True)


def test_no_query_left() -> None:
    with pytest.raises(InputError, match="none is left as a query"):
        Episode.draw(make_task([0, 1, 2], evaluation="train"), shots=3)


@pytest.mark.shared
def test_real_data_draws_are_stable(shared: Path) -> None:
    """The draw that results rest on; a change here changes every published number."""
    task = Task.load("sst2", data=shared / "data")
    episode = Episode.draw(task, shots=3, seed=2, queries=2)
    assert [e.id for e in episode.demonstrations] == [
        f"train:{i}" for i in np.random.default_rng(2).permutation(6920)[:3]
    ]
    assert all(isinstance(e, Example) for e in episode.queries)
