"""The search for a rate as a run does it: in pieces that are stored, so that it goes on where it was."""

from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study
from dualscope.learners.rate import Trial
from dualscope.studies.run_folder.storage import RunFolder


def test_a_search_goes_on_where_it_was(fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = fields | {"lr": "auto", "seeds": 1, "queries": 6}
    asked: list[tuple[int, float, int, int]] = []
    score = Trial.score

    def until(count: int) -> None:
        def counted(self: Trial, *piece: Any) -> Any:
            if len(asked) == count:
                raise KeyboardInterrupt
            asked.append(piece)
            return score(self, *piece)

        monkeypatch.setattr(Trial, "score", counted)

    until(5)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "run", device="cpu")
    until(-1)
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    assert len(asked) == len(set(asked))  # no piece was computed twice
    whole = run_study(study, tmp_path / "other", device="cpu")
    rows = [RunFolder.open(tmp_path / name).read_json(_choice(tmp_path / name)) for name in ("run", "other")]
    assert rows[0]["rate"] == rows[1]["rate"]
    assert rows[0]["curve"] == rows[1]["curve"]
    assert {cell.learning.lr for cell in whole.cells if cell.learning.name == "gd"} == {rows[0]["rate"]}


def _choice(folder: Path) -> str:
    (file,) = (folder / "rates").iterdir()
    return f"rates/{file.name}"
