"""``dualscope regression``."""

import json

import pytest
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.commands.regression import Name
from dualscope.errors import InputError
from dualscope.regression import EXPERIMENTS, load


def test_the_command_knows_every_experiment() -> None:
    assert [name.value for name in Name] == [
        *("vonoswald", "ahn", "cheng", "mesa", "akyurek", "variants", "momentum")
    ]
    assert {name.value for name in Name} == set(EXPERIMENTS)


def test_a_run_leaves_a_folder_and_prints_tables(tmp_path) -> None:
    out = tmp_path / "run"
    options = ["--quick", "--steps", "2", "--seeds", "3,5", "--out", str(out)]
    result = CliRunner().invoke(app, ["regression", "variants", *options])
    assert result.exit_code == 0, result.output
    assert "Negative" in result.output
    assert {row["seed"] for row in load(out).to_pylist()} == {3, 5, None}
    assert json.loads((out / "provenance.json").read_text())["quick"] is True


def test_claims_that_do_not_hold_exit_with_1(tmp_path) -> None:
    options = ["--steps", "1", "--seeds", "1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["regression", "ahn", *options])
    assert result.exit_code == 1, result.output
    assert "FAILS" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--seeds", "0"], "--seeds 0"), (["--device", "cuda"], "--device cuda")]
)
def test_bad_options_are_explained(arguments, said: str) -> None:
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, ["regression", "ahn", *arguments], catch_exceptions=False)
