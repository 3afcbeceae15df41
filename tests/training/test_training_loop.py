"""``dualscope train``: small, on the CPU, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.training.checkpoint import save_checkpoint
from dualscope.training.settings import Settings
from tests.training.small import SMALL, small_train


def test_trains_and_loads(tmp_path: Path) -> None:
    small_train(tmp_path)
    facts = json.loads((tmp_path / "training.json").read_text())
    assert facts["steps_done"] == 8
    assert set(facts["evaluation"]) == {"embedded", "flipped", "held_out", "mean"}
    model = Model.load(str(tmp_path), device="cpu")
    assert model.max_positions == 128
    assert model.hf.dtype == torch.float32


def test_a_resumed_training_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = small_train(tmp_path / "whole", save_every=0)

    class Stopped(Exception):
        pass

    calls = 0
    from dualscope.training import training_loop as loop

    def save_then_stop(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        save_checkpoint(*args, **kwargs)
        calls += 1
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", save_then_stop)
        with pytest.raises(Stopped):
            small_train(tmp_path / "broken")
    resumed = small_train(tmp_path / "broken")
    assert calls == 1
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_other_settings_are_refused(tmp_path: Path) -> None:
    small_train(tmp_path)
    with pytest.raises(InputError, match=r"seed 0, and 1 was asked for"):
        small_train(tmp_path, Settings(**{**SMALL.as_dict(), "seed": 1, "mixture": SMALL.mixture}))


def test_an_attention_variant_is_recorded_and_applied(tmp_path: Path) -> None:
    options = {**SMALL.as_dict(), "mixture": SMALL.mixture, "attention": {"name": "momentum", "eta": 0.5}}
    small_train(tmp_path, Settings(**options))
    assert json.loads((tmp_path / "config.json").read_text())["dualscope_attention"]["eta"] == 0.5
    from dualscope.models.attention_kinds import Momentum, installed

    loaded = Model.load(str(tmp_path), device="cpu")
    assert {installed(module) for module in loaded.attentions} == {Momentum(eta=0.5)}


@pytest.mark.slow
def test_a_killed_training_goes_on(cli: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "model"
    small = "--steps 60 --device cpu --batch 2 --length 64 --width 32 --save-every 5 --evaluate-every 0"
    command = ["train", "--out", str(out), *small.split()]
    program = [sys.executable, "-m", "dualscope.cli"]
    running = subprocess.Popen([*program, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out / "checkpoint" / "state.json").exists():
        assert running.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (out / "model.safetensors").exists()
    saved = json.loads((out / "checkpoint" / "state.json").read_text())["step"]
    assert cli(*command).code == 0
    facts = json.loads((out / "training.json").read_text())
    assert 0 < saved < facts["steps_done"] == 60


def test_a_finished_model_of_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    """Also where no checkpoint was ever written."""
    before = small_train(tmp_path, save_every=0)
    with pytest.raises(InputError, match=r"seed 0, and 1 was asked for"):
        small_train(tmp_path, replace(SMALL, seed=1), save_every=0)
    assert torch.equal(
        load_file(tmp_path / "model.safetensors")["transformer.wte.weight"], before["transformer.wte.weight"]
    )
    small_train(tmp_path, save_every=0)  # the same again is no loss
    (tmp_path / "training.json").write_text("[")
    with pytest.raises(InputError, match="does not say how"):
        small_train(tmp_path, save_every=0)
    (tmp_path / "training.json").unlink()
    with pytest.raises(InputError, match="did not train"):
        small_train(tmp_path, save_every=0)


@pytest.mark.parametrize("save_every", [0, 3])
@pytest.mark.parametrize("at", ["backward", "update", "end"])
def test_an_interrupted_training_goes_on(tmp_path: Path, save_every: int, at: str) -> None:
    """Ctrl-C before, in the middle of, and after the updates: the same weights in the end."""
    from dualscope.training import training_loop as loop

    balanced = replace(SMALL, balance=(4.0, 0.5))
    whole = small_train(tmp_path / "whole", balanced, save_every=0)
    calls = 0

    def interrupting(keep: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == (1 if at == "end" else 5):
                signal.raise_signal(signal.SIGINT)
            return keep(*args, **kwargs)

        return call

    owner, name = {
        "backward": (torch.nn.utils, "clip_grad_norm_"),
        "update": (torch.optim.AdamW, "step"),
        "end": (loop, "evaluate"),
    }[at]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupting(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            small_train(tmp_path / "broken", balanced, save_every=save_every)
    state = json.loads((tmp_path / "broken" / "checkpoint" / "state.json").read_text())
    assert state["step"] == {"backward": 4, "update": 5, "end": 8}[at]
    resumed = small_train(tmp_path / "broken", balanced, save_every=save_every)
    for key, tensor in whole.items():
        assert torch.equal(tensor, resumed[key]), key


@pytest.mark.parametrize("saved", [True, False])
def test_an_interruption_promises_only_what_was_saved(
    saved: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import typer

    from dualscope.commands.shared_options import resumable

    with pytest.raises(typer.Exit) as ended, resumable(tmp_path, lambda: saved):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert ("goes on from there" in capsys.readouterr().err) == saved


def test_a_place_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualscope.training import training_loop as loop

    monkeypatch.setattr(loop, "make_model", lambda settings: pytest.fail("it began"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        small_train(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written to"):
        small_train(tmp_path / "file" / "model")


def test_weights_that_are_not_numbers_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no longer finite"):
        small_train(tmp_path, replace(SMALL, lr=1e30))
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    "option",
    [
        ("--out", ""),
        ("--workers", "-1"),
        ("--short-steps", "-1"),
        ("--save-every", "-1"),
        ("--evaluate-every", "-1"),
        ("--seed", "4294967296"),
        ("--lr", "inf"),
    ],
)
def test_bad_options_exit_with_2(cli: Callable[..., Any], option: tuple[str, str], tmp_path: Path) -> None:
    result = cli("train", "--device", "cpu", "--out", str(tmp_path / "model"), "--steps", "1", *option)
    assert result.code == 2
    assert not (tmp_path / "model").exists()
