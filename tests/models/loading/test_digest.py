"""The cache of digests: damaged in any way it is made anew, and never ends a run."""

import json
from pathlib import Path

import pytest

from dualscope.models.loading.digest import Lineage, lineage, model_digest


@pytest.mark.parametrize(
    "content",
    [b"3", b"[1]", b"null", b'"text"', b"[" * 100_000, b"\xff\xfe", b"", b'{"a": 1}', b"folder", b"numbers", b"words"],
)
def test_a_damaged_cache_is_made_anew(
    content: bytes, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = model_digest(model_folder)
    file = tmp_path / "dualscope" / "digests.json"
    keys = json.loads(file.read_bytes())
    if content == b"folder":
        file.unlink()
        file.mkdir()
    elif content in (b"numbers", b"words"):
        file.write_text(json.dumps(dict.fromkeys(keys, 7 if content == b"numbers" else "not a digest")))
    else:
        file.write_bytes(content)
    assert model_digest(model_folder) == known
    assert file.is_dir() or json.loads(file.read_bytes()) == keys


@pytest.mark.parametrize(
    ("name", "family", "step"),
    [
        ("EleutherAI/pythia-160m@step1000", "EleutherAI/pythia-160m", 1000),
        ("allenai/OLMo-2@stage1-step5000-tokens21B", "allenai/OLMo-2", 5000),
        ("owner/model@main", "owner/model", None),
        ("owner/model", "model", None),
        ("embedded", "embedded", None),
        ("runs/x/checkpoint-900", "x", 900),
        ("runs/x/global_step12", "x", 12),
        ("runs/footstep9", "footstep9", None),
        ("runs/step-by-step", "step-by-step", None),
    ],
)
def test_by_name(name: str, family: str, step: int | None) -> None:
    assert lineage(name) == Lineage(family, step)


@pytest.mark.parametrize(("file", "field"), [("training.json", "steps_done"), ("trainer_state.json", "global_step")])
def test_a_checkpoints_own_files_count_first(tmp_path: Path, file: str, field: str) -> None:
    folder = tmp_path / "x" / "checkpoint-7"
    folder.mkdir(parents=True)
    (folder / file).write_text(json.dumps({field: 8}))
    assert lineage(str(folder)) == Lineage("x", 8)
    (folder.parent / file).write_text(json.dumps({field: 9}))
    assert lineage(str(folder.parent), "shown") == Lineage("shown", 9)
    for damaged in ("[", "[]", json.dumps({field: "many"}), json.dumps({field: -1})):
        (folder / file).write_text(damaged)
        assert lineage(str(folder)) == Lineage("x", 7)
