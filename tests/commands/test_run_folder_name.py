"""A run is named after what is run, and goes into nobody else's folder."""

from pathlib import Path

import pytest

from dualscope.commands.run_folder_name import free_folder, holds_another, run_name
from dualscope.core.errors import InputError
from dualscope.studies.learner_options import with_options
from dualscope.studies.study import Study


def test_the_name_says_what_is_run() -> None:
    assert run_name("quick", [], []) == "quick"
    assert run_name("", ["org/gpt@main"], ["tasks/mine.yaml"]) == "gpt-main-mine"
    assert run_name("controls", ["a", "b", "c", "d"], []) == "controls-4-models"


def test_the_same_study_resumes_and_another_has_its_own(tmp_path: Path) -> None:
    first, second = (Study.build({"tasks": ["sst2"], "seeds": n}) for n in (1, 2))
    place = Path(free_folder("quick", first, str(tmp_path)))
    assert place.name == "quick"
    place.mkdir()
    (place / "study.yaml").write_text(first.dump())
    assert free_folder("quick", first, str(tmp_path)) == str(place)
    assert Path(free_folder("quick", second, str(tmp_path))).name == "quick-2"
    assert holds_another(str(place), second)
    assert not holds_another(str(place), first)


def test_options_of_learners() -> None:
    study = Study.build({"tasks": ["sst2"], "learners": ["gd", "lcgd"]})
    found = with_options(study, ["gd.epochs=3", "lcgd.readout=attention", "gd.layers=[0, 1]"])
    assert [entry.options for entry in found.learners] == [{"epochs": 3, "layers": [0, 1]}, {"readout": "attention"}]
    for wrong in ("epochs=3", "gd.epochs", "gdd.epochs=3"):
        with pytest.raises(InputError, match="--option"):
            with_options(study, [wrong])


def test_paths_are_kept_in_full_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: str, task_files: tuple[str, str]
) -> None:
    """What is written with a relative path is stored with a full one, and is still the same study."""
    from dualscope.studies.execute.runner import Runner

    monkeypatch.chdir(Path(model_folder).parent)
    study = Study.build({"models": "mine=tiny", "tasks": [task_files[0]], "seeds": 1})
    runner = Runner(study, tmp_path / "mine", device="cpu")
    assert runner.models == [model_folder]
    assert {cell.episode.model.name for cell in runner.plan().whole} <= {"mine"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text(runner.study.dump())
    assert free_folder("mine", study, str(tmp_path)) == str(tmp_path / "mine")


def test_two_folders_of_one_name_can_be_told_apart(
    tmp_path: Path, model_folder: str, task_files: tuple[str, str]
) -> None:
    import shutil

    from dualscope.studies.execute.runner import Runner

    other = shutil.copytree(model_folder, tmp_path / "elsewhere" / "tiny")
    fields = {"tasks": [task_files[0]], "seeds": 1, "lr": [0.1]}
    with pytest.raises(InputError, match=r"two models are called 'tiny'.*--model a=FOLDER"):
        Runner(Study.build({"models": [model_folder, str(other)], **fields}), tmp_path / "run").plan()
    named = Study.build({"models": [f"a={model_folder}", f"b={other}"], **fields})
    cells = Runner(named, tmp_path / "run", device="cpu").plan().cells
    assert {cell.columns(None)["model"] for cell in cells} == {"a", "b"}
    with pytest.raises(InputError, match="NAME=FOLDER"):
        Runner(Study.build({"models": "a=", **fields}), tmp_path / "run")
