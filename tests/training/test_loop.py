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
from dualscope.models.files.lineage import Lineage, lineage
from dualscope.studies.patterns import matching
from dualscope.training.checkpoint import save_checkpoint
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


def test_checkpoints_are_kept(tmp_path: Path) -> None:
    """From the untrained model on; each is a model, and the same whether or not the training was interrupted."""
    settings = replace(SMALL, balance=(4.0, 0.5))
    train(settings, tmp_path / "a", save_every=0, evaluate_every=0, keep_every=4, sequences=2)
    names = sorted(folder.name for folder in (tmp_path / "a").glob("checkpoint*"))
    assert names == ["checkpoint-0", "checkpoint-4", "checkpoint-8"]
    final, last, first = (
        load_file(tmp_path / "a" / name / "model.safetensors")
        for name in (".", "checkpoint-8", "checkpoint-0")
    )
    assert all(torch.equal(final[name], last[name]) for name in final)
    assert not torch.equal(final["transformer.wte.weight"], first["transformer.wte.weight"])
    kept = tmp_path / "a" / "checkpoint-4"
    assert json.loads((kept / "training.json").read_text())["steps_done"] == 4
    assert lineage(str(kept)) == Lineage("a", 4)
    assert Model.load(str(kept), device="cpu").max_positions == 128
    assert [Path(name).name for name in matching(str(tmp_path / "a" / "checkpoint-*"))] == names


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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("steps", 0, "at least 1"), ("heads", 5, "multiple"), ("length", 32, "two examples")],
)
def test_impossible_settings_are_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Settings(**{field: value})


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
    from dualscope.training import loop

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

    from dualscope.commands.resumable import resumable

    with pytest.raises(typer.Exit) as ended, resumable(tmp_path, lambda: saved):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert ("goes on from there" in capsys.readouterr().err) == saved


def test_a_checkpoint_under_its_old_name_is_found(tmp_path: Path) -> None:
    """Killed between the two renames."""
    from dualscope.training.checkpoint import load_state

    small_train(tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    state = load_state(tmp_path / "checkpoint")
    assert state is not None
    assert state["step"] == 6
    assert (tmp_path / "checkpoint").is_dir()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without(path: Path, key: str) -> None:
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key})
    )


DAMAGES: dict[str, Callable[[Path], object]] = {
    "state cut": lambda folder: cut(folder / "state.json"),
    "state gone": lambda folder: (folder / "state.json").unlink(),
    "state a list": lambda folder: (folder / "state.json").write_text("[]"),
    "no step": lambda folder: without(folder / "state.json", "step"),
    "no settings": lambda folder: without(folder / "state.json", "settings"),
    "weights cut": lambda folder: cut(folder / "weights.safetensors"),
    "weights of nothing": lambda folder: (folder / "weights.safetensors").write_bytes(
        (folder / "optimizer.safetensors").read_bytes()
    ),
    "optimizer gone": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "a file": lambda folder: folder.rename(folder.with_name("moved")) and folder.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_explained(damage: str, tmp_path: Path) -> None:
    small_train(tmp_path)
    DAMAGES[damage](tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"not a whole checkpoint .*delete it to start again"):
        small_train(tmp_path)


def test_a_place_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualscope.training import loop

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
    ("field", "value"),
    [
        *(("lr", value) for value in (float("inf"), float("nan"), 0.0)),
        *(("minutes", value) for value in (float("inf"), float("nan"))),
        *(
            ("balance", value)
            for value in ((float("nan"), 1.0), (1.0, float("nan")), (1e9, 1.0), (1.0, 1e-9))
        ),
        *(("seed", value) for value in (-1, 2**32)),
        ("short_steps", -1),
    ],
)
def test_numbers_out_of_bounds_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} must be"):
        replace(SMALL, **{field: value})


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


def test_the_rate_rises_then_falls() -> None:
    settings = Settings(steps=100, warmup=10, lr=1.0, minutes=1)
    assert settings.rate(0, 0) == pytest.approx(0.1)
    assert settings.rate(9, 0) == pytest.approx(1.0)
    assert settings.rate(50, 0.5) == pytest.approx(0.51)
    assert settings.rate(100, 1) == pytest.approx(0.02)
    assert settings.progress(0, 0) == 0
    assert settings.progress(50, 6) == 0.5
    assert settings.progress(0, 30) == 0.5
    assert settings.progress(0, 60) == settings.progress(0, 90) == settings.progress(100, 0) == 1
