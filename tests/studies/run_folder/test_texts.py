"""A run keeps what its queries say, once, unless told not to."""

from pathlib import Path

from dualscope import run_study
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.run_folder.texts import stored_texts
from dualscope.tasks import Episode, Task

STUDY = {"tasks": ["embedded-sst2"], "learners": ["gd"], "lr": [0.1], "shots": 2, "queries": 5, "seeds": 2}


def test_texts_are_kept_once_and_are_the_prompts(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path / "run")
    (found,) = stored_texts(RunFolder.open(tmp_path / "run"))
    task = Task.load("embedded-sst2")
    episode = Episode.draw(task, shots=2, seed=1, queries=5)
    assert found.task == "embedded-sst2"
    assert found.labels == task.labels
    assert found.by_query == {query.id: task.prompt(query) for query in episode.queries}


def test_no_texts(tmp_path: Path) -> None:
    run_study({**STUDY, "texts": False, "seeds": 1}, tmp_path / "run")
    assert stored_texts(RunFolder.open(tmp_path / "run")) == []
