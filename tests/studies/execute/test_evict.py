"""Weights that a run fetched leave the cache once all cells of their model are stored; what was there before stays.

Most caches are made here, as huggingface_hub keeps them; one is filled from a hub of our own.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import scan_cache_dir
from typer.testing import CliRunner

from dualscope import Run, Study, run_study
from dualscope.cli import app
from dualscope.models.loading.digest import is_here
from dualscope.studies.execute.evict import snapshot_of
from dualscope.studies.execute.runner import Runner
from dualscope.studies.run_folder.storage import RunFolder
from tests.hostile import endpoint

COMMITS = ("0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef")


def add_snapshot(cache: Path, folder: Path, repository: str, commit: str, ref: str) -> None:
    """A commit's files: blobs under their hash, and links to them."""
    place = cache / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    for part in (snapshot, place / "blobs", place / "refs"):
        part.mkdir(parents=True, exist_ok=True)
    (place / "refs" / ref).write_text(commit)
    for file in folder.iterdir():
        blob = place / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / blob.name)


@pytest.fixture
def cache(tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models; of one, two commits that share all files but one."""
    from huggingface_hub import constants

    found, other = tmp_path / "hub", tmp_path / "other"
    shutil.copytree(model_folder, other)
    (other / "README.md").write_text("a later commit\n")
    add_snapshot(found, Path(model_folder), "owner/tiny", COMMITS[0], "main")
    add_snapshot(found, other, "owner/tiny", COMMITS[1], "later")
    add_snapshot(found, Path(model_folder), "owner/second", COMMITS[0], "main")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(found))
    return found


def kept(cache: Path) -> set[tuple[str, str]]:
    """Which commits of which models are there, each with weights that can be read."""
    found = set()
    for repository in scan_cache_dir(cache).repos:
        for revision in repository.revisions:
            assert (revision.snapshot_path / "model.safetensors").stat().st_size
            found.add((repository.repo_id, revision.commit_hash))
    return found


ALL = {("owner/tiny", COMMITS[0]), ("owner/tiny", COMMITS[1]), ("owner/second", COMMITS[0])}
SECOND, LATER = ("owner/second", COMMITS[0]), ("owner/tiny", COMMITS[1])


def run(fields: dict[str, Any], place: Path, **options: Any) -> Any:
    fetched(place, *(model for model in fields["models"] if model.startswith("owner/")))
    where: dict[str, Any] = {"device": "cpu", "offline": True, "evict": True} | options
    return run_study(fields, place, **where)


def fetched(place: Path, *models: str) -> None:
    """As if the run had brought them into the cache."""
    for model in models:
        snapshot = snapshot_of(model)
        if snapshot is not None:
            RunFolder.create(place).write_json(snapshot.note, {})


@pytest.fixture
def hub(tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub of our own that serves owner/tiny, and an empty cache."""
    from huggingface_hub import constants

    with endpoint.serving(Path(model_folder)) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield tmp_path / "hub"


def test_what_the_run_itself_fetched_goes_and_what_was_there_stays(
    fields: dict[str, Any], hub: Path, tmp_path: Path
) -> None:
    study = fields | {"models": ["owner/tiny"], "learners": ["dilution"], "controls": [], "seeds": 1}
    options: dict[str, Any] = {"device": "cpu", "evict": True}
    first = run_study(study, tmp_path / "first", **options)
    assert first.complete
    assert [note for note in first.notes if "owner/tiny@ccccccc was evicted" in note]
    assert kept(hub) == set()
    again = run_study(study | {"seeds": 2}, tmp_path / "first", **options | {"evict": False})
    assert again.complete
    assert kept(hub) == {("owner/tiny", endpoint.COMMIT)}
    other = run_study(study, tmp_path / "second", **options)
    assert [n for n in other.notes if "owner/tiny@ccccccc stays in the hub cache: it was there before" in n]
    assert kept(hub) == {("owner/tiny", endpoint.COMMIT)}
    later = run_study(study | {"seeds": 2}, tmp_path / "first", **options)  # who fetched it, and all is stored
    assert [note for note in later.notes if "was evicted" in note]
    assert kept(hub) == set()


def test_a_plan_fetches_no_weights(fields: dict[str, Any], hub: Path, tmp_path: Path) -> None:
    """Not even where other files of the model are here already, such as those of its tokenizer."""
    from dualscope.models.loading.load import load_tokenizer

    load_tokenizer("owner/tiny")
    assert not is_here("owner/tiny")
    planned = Runner(Study.build(fields | {"models": ["owner/tiny"]}), tmp_path / "run", fetch=False)
    assert planned.weights == {"owner/tiny": "not fetched"}
    assert not list(hub.rglob("model.safetensors"))


def test_only_what_the_run_used_and_only_that_commit(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    assert kept(cache) == ALL
    run(fields | {"models": ["owner/tiny"]}, tmp_path / "plain", evict=False)
    assert kept(cache) == ALL
    result = run(fields | {"models": ["owner/tiny"]}, tmp_path / "run")
    assert result.complete
    assert kept(cache) == {SECOND, LATER}
    assert [note for note in result.notes if "owner/tiny@0123456 was evicted from the hub cache" in note]


def test_a_model_goes_as_soon_as_its_own_cells_are_stored(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    seen: list[set[tuple[str, str]]] = []
    models = {"models": ["owner/tiny", "owner/second"]}
    run(fields | models, tmp_path / "run", tell=lambda _event: seen.append(kept(cache)))
    assert seen[0] == ALL
    assert {SECOND, LATER} in seen  # while the other model was still being worked on
    assert kept(cache) == {LATER}


def test_it_waits_for_every_shard(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    study = fields | {"models": ["owner/second"]}
    run(study, tmp_path / "run", shard=(1, 2))
    assert kept(cache) == ALL
    run(study, tmp_path / "run", shard=(2, 2))
    assert kept(cache) == ALL - {SECOND}


def test_workers_of_their_own(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    """Other processes find the cache by the environment, as huggingface_hub does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(cache))
        study = fields | {"models": ["owner/second"], "seeds": 1}  # one piece of work, and so one process
        assert run(study, tmp_path / "run", jobs=2).complete
    assert kept(cache) == ALL - {SECOND}


def test_a_failed_cell_keeps_its_model(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    learners = [{"learner": "gd", "lr": 1e300}, "lcgd"]
    result = run(fields | {"models": ["owner/tiny"], "learners": learners}, tmp_path / "run")
    assert result.failures
    assert kept(cache) == ALL


def test_a_folder_is_never_touched(fields: dict[str, Any], cache: Path, model_folder: str, tmp_path: Path) -> None:
    """Not even one inside of the cache, if it was given by its path."""
    inside = cache / "models--owner--tiny" / "snapshots" / COMMITS[0]
    before = {file: file.read_bytes() for file in (*Path(model_folder).iterdir(), *inside.iterdir())}
    assert snapshot_of(str(inside)) is None
    result = run(fields | {"models": [model_folder, f"again={inside}"]}, tmp_path / "run")
    assert result.complete
    assert {file: file.read_bytes() for file in before} == before
    assert kept(cache) == ALL
    assert not [note for note in result.notes if "evicted" in note]


def test_from_the_command_line(fields: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(Study.build(fields | {"models": ["owner/second"]}).dump())
    command = ["run", str(study), "--out", str(tmp_path / "run"), "--device", "cpu", "--offline", "--no-report"]
    fetched(tmp_path / "run", "owner/second")
    assert CliRunner().invoke(app, [*command, "--evict", "--dry-run"]).exit_code == 0
    assert kept(cache) == ALL
    said = CliRunner().invoke(app, [*command, "--evict", "--jobs", "1"])
    assert said.exit_code == 0, said.output
    assert "owner/second@0123456 was evicted" in said.output
    assert kept(cache) == ALL - {SECOND}
    assert Run.open(tmp_path / "run").stored()
