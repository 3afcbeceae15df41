"""dualscope doctor: exit codes, and that it would notice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dualscope import LEARNERS, cli
from dualscope.core.errors import InputError
from dualscope.models.capture import attention_kernel
from tests.models.tiny import tiny_model


def save(folder: Path, family: str) -> str:
    hf, tokenizer = tiny_model(family)
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def examine(*options: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli.app, ["doctor", "--device", "cpu", *options])
    return result.exit_code, result.output


@pytest.mark.parametrize("family", ["gpt2", "mistral", "xglm", "bloom"])
def test_healthy_models_exit_0(tmp_path: Path, family: str) -> None:
    code, output = examine("--model", save(tmp_path, family))
    assert code == 0, output
    assert f"family {family}" in output
    assert ("adapter" in output) == (family in ("xglm", "bloom"))
    assert "FAILED" not in output
    for line in (
        "captured - plain",
        "shared context - full context",
        "sim_aou",
        "sim_am_delta",
        "memory",
        "activations",
    ):
        assert line in output
    assert "queries a second" in output


def test_a_tokenizer_without_eos(tmp_path: Path) -> None:
    hf, tokenizer = tiny_model("gpt2")
    tokenizer.eos_token = None
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code, output = examine("--model", str(tmp_path))
    assert code == 0, output
    assert "FAILED" not in output


def test_a_lower_precision_stands_beside_float32(tmp_path: Path) -> None:
    code, output = examine("--model", save(tmp_path, "llama"), "--dtype", "bfloat16")
    assert code == 0, output
    assert "float32" in output
    assert "bfloat16" in output


def test_a_wrong_shared_context_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_the_context(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
        return second

    monkeypatch.setattr(attention_kernel, "merge", forget_the_context)
    code, output = examine("--model", save(tmp_path, "gpt2"))
    assert code == 1
    assert "FAILED" in output
    assert "1 of the tolerances missed" in output


def test_a_wrong_attention_exits_1_in_a_lower_precision_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attention_kernel.own_part

    def see_the_future(query: torch.Tensor, *rest: object) -> object:
        out, lse = honest(query, *rest)  # type: ignore[arg-type]
        return out * 1.5, lse

    monkeypatch.setattr(attention_kernel, "own_part", see_the_future)
    code, output = examine("--model", save(tmp_path, "gpt2"), "--dtype", "bfloat16")
    assert code == 1
    assert output.count("FAILED") >= 2


def test_bad_input_exits_2_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["dualscope", "doctor", "--model", "./nowhere"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: no such folder: ./nowhere\n"


def test_a_plugin_s_learners_are_tried(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    try:
        code, output = examine("--model", save(tmp_path / "model", "gpt2"), "--plugin", str(plugin))
    finally:
        for name in ("doctor-good", "doctor-bad"):
            LEARNERS.remove(name)
    assert code == 1
    assert "your learner doctor-good" in output
    assert "works (accuracy" in output
    assert "FAILED (no luck)" in output
    assert "1 of the tolerances missed" in output


def test_a_plugin_that_cannot_be_imported_is_said(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import nothing_of_that_name")
    with pytest.raises(InputError, match=r"--plugin .*plugin.py: ModuleNotFoundError"):
        CliRunner().invoke(cli.app, ["doctor", "--plugin", str(plugin)], catch_exceptions=False)


PLUGIN = """
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("doctor-good")
class Good(Learner):
    \"\"\"Learns nothing.\"\"\"
    def learn(self, bench, lr, options):
        return Learned(bench.model.read(bench.lesson, want=bench.read_want))

@LEARNERS.register("doctor-bad")
class Bad(Learner):
    \"\"\"Fails.\"\"\"
    def learn(self, bench, lr, options):
        raise ValueError("no luck")
"""
