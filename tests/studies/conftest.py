"""A tiny model in a folder, two small tasks and a study of them: what every test of studies runs."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.tiny import tiny_model

WORDS = ("good", "great", "bad", "terrible", "film", "movie", "it", "is", "was", "not", "the", "a")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    with torch.no_grad():
        hf, tokenizer = tiny_model("gpt2", seed=0, n_layer=2)
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    gc.freeze()  # what was imported for it stays, too
    return str(folder)


def write_task(folder: Path, name: str, seed: int, words: tuple[str, str]) -> str:
    """A two-class task in files of its own."""
    rng = np.random.default_rng(seed)
    for split, size in (("train", 150), ("test", 24)):
        rows = [
            {"text": " ".join(rng.choice(WORDS, rng.integers(3, 7))), "label": int(rng.integers(2))}
            for _ in range(size)
        ]
        (folder / f"{name}-{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\n"
        f"source: {{files: {{train: {name}-train.jsonl, evaluation: {name}-test.jsonl}}}}\n"
        "template: 'Text: {text} Label:'\n"
        f"labels: ['{words[0]}', '{words[1]}']\n"
    )
    return str(folder / f"{name}.yaml")


@pytest.fixture(scope="session")
def task_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tasks")
    return write_task(folder, "moods", 0, ("Negative", "Positive")), write_task(folder, "kinds", 1, ("Yes", "No"))


@pytest.fixture
def fields(model_folder: str, task_files: tuple[str, str]) -> dict[str, Any]:
    """A study of 2 seeds of one task, three learners: small enough for every test."""
    return {
        "models": [model_folder],
        "tasks": [task_files[0]],
        "seeds": 2,
        "shots": 4,
        "queries": 12,
        "lr": [0.1],
        "learners": ["gd"],
    }
