"""A model as a training gives it away: finite, in a folder that appears whole."""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import GPT2LMHeadModel

from dualscope.core.errors import InputError
from dualscope.core.folder import share
from dualscope.training.balance import rebalance
from dualscope.training.settings import Settings
from dualscope.training.tokenizer import make_tokenizer


def save_model(model: GPT2LMHeadModel, out: Path, facts: dict[str, Any]) -> None:
    """A folder in Hugging Face's format, weights in half precision, with ``training.json`` beside.

    That file comes first: whoever is killed here leaves a folder that is known to be ours.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "training.json").write_text(json.dumps(facts, indent=1))
    copy.deepcopy(model).cpu().half().save_pretrained(out)
    for file in out.glob("*.safetensors"):
        share(file)
    make_tokenizer().save_pretrained(out)


def finished(model: GPT2LMHeadModel, settings: Settings) -> GPT2LMHeadModel:
    """The model as it is given away. The one in training is left alone: weights that are rebalanced are others."""
    final = copy.deepcopy(model)
    final.eval()
    if settings.balance:
        rebalance(final, settings.balance)
    return final


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears whole or not at all; one that is there gives way."""
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    yield aside
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def check_finite(model: GPT2LMHeadModel) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.detach().half().isfinite().all():
            raise InputError(
                f"training went astray: {name} is no longer finite in float16, so no model was saved; "
                "train with a lower --lr (or --balance factors nearer 1) in another --out"
            )
