"""Bad input, as a person would give it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tests.tasks.spoilt import GOOD, ROWS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task that is in order, for a test to spoil."""
    (tmp_path / "mine.yaml").write_text(GOOD)
    (tmp_path / "train.jsonl").write_text(ROWS)
    (tmp_path / "test.jsonl").write_text(ROWS)
    return tmp_path


@pytest.fixture
def refused(cli: Callable[..., Result], folder: Path) -> Callable[..., str]:
    """Runs validate and returns the one message, having checked that it is one, with exit code 2."""

    def run(*arguments: object) -> str:
        code, out, err = cli("validate", *(arguments or (folder / "mine.yaml",)))
        assert code == 2, (code, out, err)
        assert "Traceback" not in err
        assert err.startswith("error: ")
        assert len(err.strip().splitlines()) == 1
        return err

    return run
