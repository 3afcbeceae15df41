"""``dualscope train``: small, on the CPU, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dualscope.errors import InputError
from dualscope.models import Model
from dualscope.training.loop import train
from dualscope.training.settings import Settings

SMALL = Settings(steps=8, short_steps=4, batch=2, length=128, layers=2, width=32, heads=2, warmup=2)


def small_train(out: Path, settings: Settings = SMALL, save_every: int = 3) -> dict[str, torch.Tensor]:
    train(settings, out, save_every=save_every, evaluate_every=0, sequences=2)
    return load_file(out / "model.safetensors")


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
    from dualscope.training import loop

    keep = loop.save_checkpoint

    def save_then_stop(*args: object, **kwargs: object) -> None:
        nonlocal calls
        keep(*args, **kwargs)  # type: ignore[arg-type]
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
    from dualscope.models.attention import variant_of

    assert variant_of(Model.load(str(tmp_path), device="cpu").hf) is not None


@pytest.mark.slow
def test_a_killed_training_goes_on(cli: Callable, tmp_path: Path) -> None:
    out = tmp_path / "model"
    command = [
        "train",
        "--steps",
        "60",
        "--out",
        str(out),
        "--device",
        "cpu",
        "--batch",
        "2",
        "--length",
        "64",
    ]
    command += ["--width", "32", "--save-every", "5", "--evaluate-every", "0"]
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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("steps", 0, "at least 1"), ("heads", 5, "multiple"), ("length", 32, "two examples")],
)
def test_impossible_settings_are_refused(field: str, value: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Settings(**{field: value})
