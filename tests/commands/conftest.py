"""The small studies that tests of commands run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.studies.conftest import fields, model_folder, task_files

__all__ = ["fields", "model_folder", "task_files"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for --data with a few rows of a catalog task."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "sst2").mkdir()
    rng = np.random.default_rng(3)
    for split in ("train", "validation"):
        rows = [
            {"sentence": " ".join(rng.choice(["good", "bad", "film", "it", "is"], 5)), "label": int(rng.integers(2))}
            for _ in range(80)
        ]
        (folder / "sst2" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def arguments(model_folder: str, data: Path, tmp_path: Path) -> list[Any]:
    return [
        *("run", "--model", model_folder, "--task", "sst2", "--data", data, "--seeds", 2, "--shots", 4),
        *("--queries", 10, "--lr", "0.1", "--learner", "gd", "--out", tmp_path / "run", "--no-report"),
        *("--device", "cpu", "--jobs", 1),
    ]
