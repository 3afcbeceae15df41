"""``dualscope regression``."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.commands.regression import Name
from dualscope.core.errors import InputError
from dualscope.regression import EXPERIMENTS, Results, load, save
from dualscope.regression.architectures.gpt2 import Gpt2Learner
from dualscope.regression.results_folder import check_place


def test_the_command_knows_every_experiment() -> None:
    assert [name.value for name in Name] == [
        *("vonoswald", "ahn", "cheng", "mesa", "akyurek", "variants", "momentum", "garg", "newton", "softmax-layer")
    ]
    assert {name.value for name in Name} == set(EXPERIMENTS)


def test_a_run_leaves_a_folder_and_prints_tables(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--quick", "--steps", "2", "--seeds", "3,5", "--out", str(out)]
    result = CliRunner().invoke(app, ["regression", "variants", *options])
    assert result.exit_code == 0, result.output
    assert "negative" in result.output
    assert {row["seed"] for row in load(out).to_pylist()} == {3, 5, None}
    assert json.loads((out / "provenance.json").read_text())["quick"] is True


def test_claims_that_do_not_hold_exit_with_1(tmp_path: Path) -> None:
    options = ["--steps", "1", "--seeds", "1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["regression", "ahn", *options])
    assert result.exit_code == 1, result.output
    assert "FAILS" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "--seeds 0"),
        (["--seeds", "1,1"], "seed 1 is there twice"),
        (["--seeds", "1001"], "at most 1000 seeds"),
        (["--seeds", "9999999999"], "at most 1000 seeds"),
        (["--seeds", "0,4294967296"], "at most 4294967295"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--quick", "--full"], "--quick and --full: give one of them"),
        (["--minutes", "0"], "--minutes 0"),
        (["--compile"], "--compile: ahn trains linear layers.*garg"),
    ],
)
def test_bad_options_are_explained(arguments: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, ["regression", "ahn", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_explained(device: str, tmp_path: Path) -> None:
    options = ["--quick", "--device", device, "--out", str(tmp_path / "run")]
    with pytest.raises(InputError, match=f"device '{device}'"):
        CliRunner().invoke(app, ["regression", "momentum", *options], catch_exceptions=False)


def test_a_quick_run_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["regression", "variants", "--quick", "--steps", "1", "--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["regression-variants-quick"]


@pytest.mark.slow
def test_blocks_are_compiled_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = 0
    own = Gpt2Learner.compile_blocks

    def counted(model: Gpt2Learner) -> None:
        nonlocal compiled
        compiled += 1
        own(model)

    monkeypatch.setattr(Gpt2Learner, "compile_blocks", counted)
    options = ["--quick", "--steps", "2", "--seeds", "1", "--compile", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["regression", "newton", *options])
    assert result.exit_code == 0, result.output
    assert compiled == 2  # one for each condition


def some_results() -> Results:
    results = Results("ahn")
    results.add("trained", "loss", 0.5)
    return results


def test_results_of_other_settings_are_not_replaced(tmp_path: Path) -> None:
    first, second = (EXPERIMENTS["ahn"](steps=steps) for steps in (2, 3))
    save(some_results(), first, tmp_path, seconds=1)
    check_place(tmp_path, "ahn", first)
    with pytest.raises(InputError, match=r"steps 2, and 3 was asked for.*--out"):
        check_place(tmp_path, "ahn", second)
    (tmp_path / "regression.parquet").unlink()
    check_place(tmp_path, "ahn", second)  # nothing would be lost
    with pytest.raises(InputError, match="holds the experiment 'ahn'"):
        check_place(tmp_path, "mesa", EXPERIMENTS["mesa"]())


def test_an_interrupted_save_leaves_no_rows_of_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualscope.studies.run_folder.storage import RunFolder

    first, second = (EXPERIMENTS["ahn"](steps=steps) for steps in (2, 3))
    save(some_results(), first, tmp_path, seconds=1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(some_results(), second, tmp_path, seconds=1)
    assert not (tmp_path / "regression.parquet").exists()


@pytest.mark.parametrize("content", ["a: [", "- 1", "text", ""])
def test_broken_settings_are_explained(content: str, tmp_path: Path) -> None:
    (tmp_path / "regression.yaml").write_text(content)
    with pytest.raises(InputError, match=r"regression\.yaml: not a table"):
        check_place(tmp_path, "ahn", EXPERIMENTS["ahn"]())
