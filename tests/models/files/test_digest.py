"""The cache of digests: damaged in any way it is made anew, and never ends a run."""

import json
from pathlib import Path

import pytest

from dualscope.models.files.digest import model_digest


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
