"""A tiny task and bench for the tests of learners."""

from typing import Any

import numpy as np
import torch

from dualscope.learners import LEARNERS, Bench
from dualscope.models.model import Model
from dualscope.tasks import Episode, Lesson, Task, make_lesson
from dualscope.tasks.sources import DataRow
from dualscope.tasks.task_config import TaskConfig
from tests.models.tiny import tiny_model

ANY_TASK = [name for name in LEARNERS if name != "bayes"]  # which needs a generated task


class Rows:
    """Random short texts, longer and shorter, with labels."""

    def __init__(self, classes: int, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        words = ["the", "film", "is", "was", "not", "good", "bad", "great", "movie", *(f"w{i}" for i in range(9))]
        self.table: list[dict[str, Any]] = [
            {"text": " ".join(rng.choice(words, size=rng.integers(2, 6))), "label": int(rng.integers(classes))}
            for _ in range(n)
        ]

    def rows(self, split: str) -> list[DataRow]:
        half = len(self.table) // 2
        return [*(self.table[:half] if split == "train" else self.table[half:])]

    def file(self, split: str) -> None:
        return None

    def where(self, split: str) -> str:
        return f"made up: {split}"


def tiny_task(
    name: str = "tiny",
    labels: tuple[str, ...] = ("Negative", "Very Positive"),
    seed: int = 0,
    n: int = 40,
    template: str = "Text: {text} Label:",
) -> Task:
    config = TaskConfig.model_validate(
        {
            "name": name,
            "source": {"files": {"train": "train.jsonl", "evaluation": "evaluation.jsonl"}},
            "template": template,
            "labels": list(labels),
        }
    )
    return Task(config, Rows(len(labels), seed, n))


def tiny_lesson(
    model: Model, shots: int = 3, queries: int = 5, seed: int = 0, task: Task | None = None, **options: Any
) -> Lesson:
    reading = {key: options.pop(key) for key in ("read_at", "gd_demonstrations") if key in options}
    positions = options.pop("max_positions", model.max_positions)
    episode = Episode.draw(task or tiny_task(), shots=shots, seed=seed, queries=queries, **options)
    return make_lesson(episode, model.tokenizer, positions, **reading)


def wrapped(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, bos: bool = True, **config: Any) -> Model:
    hf, tokenizer = tiny_model(family, dtype, seed, bos, **config)
    return Model(hf, tokenizer, name=f"tiny-{family}")


def tiny_bench(
    family: str = "gpt2",
    dtype: torch.dtype = torch.float64,
    want: frozenset[str] = frozenset(),
    other: bool = False,
    **options: Any,
) -> Bench:
    model = wrapped(family, dtype)
    second = None
    if other:
        second = tiny_lesson(
            model, task=tiny_task("second", ("Yes", "No"), seed=9, template="Question: {text} Answer:")
        )
    return Bench(model, tiny_lesson(model, **options), want=want, other=second)
