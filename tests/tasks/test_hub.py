"""Data sets in the hub's layout: a local repository, so that no network is needed."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from dualscope import InputError, Task
from tests.tasks.test_sources import LABELS, TEXTS, task_file


@pytest.fixture
def hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as the hub keeps it: Parquet files by configuration, and a card that names them."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    repository = tmp_path / "repository"
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    for split, labels in (("train", LABELS), ("validation", LABELS[::-1]), ("test", [-1] * len(LABELS))):
        path = repository / "reviews" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = datasets.Dataset.from_dict({"sentence": TEXTS, "label": labels}, features=features)
        data.to_parquet(path)
    splits = "".join(f"  - split: {split}\n    path: reviews/{split}-*\n" for split in ("train", "validation", "test"))
    (repository / "README.md").write_text(
        f"---\nconfigs:\n- config_name: reviews\n  data_files:\n{splits}---\n# Reviews\n"
    )
    return repository


HUB = "{hub: {dataset: ./repository, config: reviews}}"


@pytest.mark.parametrize("offline", [False, True])
def test_the_hubs_layout(tmp_path: Path, hub_repository: Path, offline: bool) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="validation"), offline=offline)
    assert [e.fields["sentence"] for e in task.train] == TEXTS
    assert [e.label for e in task.train] == LABELS
    assert [e.label for e in task.evaluation] == LABELS[::-1]


def test_class_names_of_the_hub(tmp_path: Path, hub_repository: Path) -> None:
    more = "label_values: [pos, neg]\n"  # another order than the data set's
    task = Task.load(task_file(tmp_path, HUB, evaluation="validation", more=more))
    assert [e.label for e in task.train] == [1 - label for label in LABELS]


@pytest.mark.parametrize("more", ["", "label_values: [neg, pos]\n"])
def test_hub_split_without_labels_is_named(tmp_path: Path, hub_repository: Path, more: Any) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="test", more=more))
    with pytest.raises(InputError, match="the split 'test' has no labels"):
        _ = task.evaluation


def test_unknown_split_of_the_hub(tmp_path: Path, hub_repository: Path) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="dev"))
    with pytest.raises(InputError, match=r"repository .reviews., split dev: cannot be loaded"):
        _ = task.evaluation


def test_a_loading_script_is_never_run(tmp_path: Path, hub_repository: Path) -> None:
    ran = tmp_path / "ran"
    (hub_repository / "repository.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    (hub_repository / "README.md").unlink()
    with contextlib.suppress(InputError):
        _ = Task.load(task_file(tmp_path, "{hub: {dataset: ./repository}}", evaluation="validation")).train
    assert not ran.exists()


def test_offline_leaves_the_libraries_as_they_were(
    tmp_path: Path, hub_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub.constants as hub

    def settings() -> list[object]:
        config = datasets.config
        return [hub.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE, config.HF_UPDATE_DOWNLOAD_COUNTS]

    before = settings()
    _ = Task.load(task_file(tmp_path, HUB, evaluation="dev"), offline=True).train
    with pytest.raises(InputError):
        _ = Task.load(task_file(tmp_path, HUB, evaluation="dev"), offline=True).evaluation
    assert settings() == before
