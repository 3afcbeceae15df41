"""The smallest training: eight steps of a model of two layers."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from dualscope.training.settings import Settings
from dualscope.training.training_loop import train

SMALL = Settings(steps=8, short_steps=4, batch=2, length=128, layers=2, width=32, heads=2, warmup=2)


def small_train(out: Path, settings: Settings = SMALL, save_every: int = 3) -> dict[str, torch.Tensor]:
    train(settings, out, save_every=save_every, evaluate_every=0, sequences=2)
    return load_file(out / "model.safetensors")
