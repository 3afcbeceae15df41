"""The precision that is taken where none is asked for."""

from pathlib import Path

import pytest
import torch

from dualscope.models import Model
from dualscope.models.loading import automatic_precision as automatic
from dualscope.models.loading.automatic_precision import automatic_dtype


def test_small_on_a_cpu_and_nothing_else() -> None:
    assert automatic_dtype("embedded", "cpu") == "float64"
    assert automatic_dtype("embedded", "cuda:1") == "float32"
    assert automatic_dtype("embedded", "mps") == "float32"  # which has no float64
    assert automatic_dtype("./not/here", "cpu") == "float32"


def test_large_models_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "SMALL", 3_000_000)
    assert automatic_dtype("embedded", "cpu") == "float32"  # 3.0 million and a few


def test_an_accelerator_is_what_auto_means_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "has_accelerator", lambda: True)
    assert automatic_dtype("embedded", "auto") == "float32"
    monkeypatch.setattr(automatic, "has_accelerator", lambda: False)
    assert automatic_dtype("embedded", "auto") == "float64"


def test_a_model_can_be_loaded_so(tmp_path: Path) -> None:
    model = Model.load("embedded", device="cpu", dtype="auto")
    assert model.dtype == torch.float64
    assert model.precision == "float64"
    assert Model.load("embedded", device="cpu").dtype == torch.float32
