"""Checkpoints: kept, found again, and explained where they are damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.loading.digest import Lineage, lineage
from dualscope.studies.paths import matching
from dualscope.training.training_loop import train
from tests.training.small import SMALL, small_train

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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without(path: Path, key: str) -> None:
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))


def test_checkpoints_are_kept(tmp_path: Path) -> None:
    """From the untrained model on; each is a model, and the same whether or not the training was interrupted."""
    settings = replace(SMALL, balance=(4.0, 0.5))
    train(settings, tmp_path / "a", save_every=0, evaluate_every=0, keep_every=4, sequences=2)
    names = sorted(folder.name for folder in (tmp_path / "a").glob("checkpoint*"))
    assert names == ["checkpoint-0", "checkpoint-4", "checkpoint-8"]
    final, last, first = (
        load_file(tmp_path / "a" / name / "model.safetensors") for name in (".", "checkpoint-8", "checkpoint-0")
    )
    assert all(torch.equal(final[name], last[name]) for name in final)
    assert not torch.equal(final["transformer.wte.weight"], first["transformer.wte.weight"])
    kept = tmp_path / "a" / "checkpoint-4"
    assert json.loads((kept / "training.json").read_text())["steps_done"] == 4
    assert lineage(str(kept)) == Lineage("a", 4)
    assert Model.load(str(kept), device="cpu").max_positions == 128
    assert [Path(name).name for name in matching(str(tmp_path / "a" / "checkpoint-*"))] == names


def test_a_checkpoint_under_its_old_name_is_found(tmp_path: Path) -> None:
    """Killed between the two renames."""
    from dualscope.training.checkpoint import load_state

    small_train(tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    state = load_state(tmp_path / "checkpoint")
    assert state is not None
    assert state["step"] == 6
    assert (tmp_path / "checkpoint").is_dir()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_explained(damage: str, tmp_path: Path) -> None:
    small_train(tmp_path)
    DAMAGES[damage](tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"not a whole checkpoint .*delete it to start again"):
        small_train(tmp_path)
