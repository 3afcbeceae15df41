"""One name for several models."""

from pathlib import Path

import pytest

from dualscope.core.errors import InputError
from dualscope.studies.paths import matching
from dualscope.studies.study import Study


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for step in (1000, 900, 50):
        (tmp_path / f"runs/x/checkpoint-{step}").mkdir(parents=True)
        (tmp_path / f"runs/x/checkpoint-{step}/config.json").touch()
    (tmp_path / "runs/x/checkpoint-empty").mkdir()
    (tmp_path / "runs/x/checkpoint-file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_star_stands_for_models_in_the_order_of_their_numbers(checkpoints: Path) -> None:
    steps = [f"runs/x/checkpoint-{step}" for step in (50, 900, 1000)]
    assert matching("runs/x/checkpoint-*") == steps
    assert matching("./runs/*/checkpoint-*") == steps
    assert matching(f"{checkpoints}/runs/x/*") == [f"{checkpoints}/{step}" for step in steps]
    assert matching("runs/x/checkpoint-{900,*00}") == steps[1:]


def test_braces_multiply() -> None:
    assert matching("o/m-{70m,160m}@step{1, 2}") == [
        f"o/m-{size}@step{step}" for size in ("70m", "160m") for step in (1, 2)
    ]
    assert matching("o/{m") == ["o/{m"]  # who reads it says what is wrong


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("runs/x/step-*", "no folder matches"),
        ("runs/x/checkpoint-e*", "none holds a config.json"),
        ("o/m@step*", "hub"),
    ],
)
def test_what_matches_nothing_is_said(checkpoints: Path, pattern: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        matching(pattern)


def test_patterns_in_a_study_file_and_in_its_options(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the file, or else in the working folder."""
    file = checkpoints / "runs/study.yaml"
    file.write_text("models: [embedded, 'x/checkpoint-{50,9*}', 'runs/x/checkpoint-1*']\ntasks: [embedded-sst2]\n")
    steps = [str(checkpoints / f"runs/x/checkpoint-{step}") for step in (50, 900)]
    assert list(Study.resolve(file=file).models) == ["embedded", *steps, "runs/x/checkpoint-1000"]
    found = Study.resolve({"models": ["runs/x/*", "runs/x/checkpoint-50"]}, file)
    assert [Path(model).name for model in found.models] == [f"checkpoint-{n}" for n in (50, 900, 1000)]
    file.write_text("models: x/step-*\n")
    with pytest.raises(InputError, match="no folder matches"):
        Study.resolve(file=file)
