"""A worker's model: loaded as its place says, with one draw of weights for all variants of a seed."""

from typing import Any

import pytest
import torch

from dualscope.core.spec import ModelSpec
from dualscope.models import Model
from dualscope.models import draws as drawing
from dualscope.models.files.digest import model_digest
from dualscope.models.model_variants import DRAWN
from dualscope.studies.execute.loaded_model import LoadedModel
from dualscope.studies.execute.outcome import CellError
from dualscope.studies.execute.work import WorkerSetup
from dualscope.studies.study import Study

SETUP = WorkerSetup("nowhere", Study.build({"tasks": ["embedded-sst2"]}), device="cpu", offline=True)


def place(variant: Any, seed: int | None) -> ModelSpec:
    return ModelSpec("embedded", model_digest("embedded", True, None), variant, seed)


ALL = [place("trained", None), *(place(variant, seed) for seed in (0, 1) for variant in DRAWN)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that weights were drawn from."""
    seeds: list[int] = []

    class Counting(drawing.Draws):
        def __init__(self) -> None:
            super().__init__(self._count)

        def _count(self, hf: Any, seed: int) -> drawing.Weights:
            seeds.append(seed)
            return drawing.drawn(hf, seed)

    monkeypatch.setattr(drawing, "Draws", Counting)
    return seeds


@pytest.mark.parametrize("ahead", [ALL, []], ids=["the work to come is known", "it is not"])
def test_the_variants_of_a_seed_share_a_draw(ahead: list[ModelSpec], drawn: list[int]) -> None:
    loaded = LoadedModel(SETUP, ahead)
    for at in ALL:
        own = dict(loaded.at(at).hf.named_parameters())
        alone = Model.load("embedded", device="cpu", variant=at.variant, init_seed=at.init_seed or 0)
        assert all(torch.equal(own[name], other) for name, other in alone.hf.named_parameters())
        assert loaded.at(at) is loaded.at(at)
    assert drawn == [0, 1]


def test_on_an_accelerator_the_next_draw_is_begun_at_once(drawn: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedModel(SETUP, ALL)
    monkeypatch.setattr(Model, "device", torch.device("meta"))  # anything but a CPU
    loaded.at(ALL[0])
    assert loaded._draws is not None
    loaded._draws.settle()
    assert drawn == [0]


def test_files_that_changed_after_the_plan_are_refused() -> None:
    with pytest.raises(CellError, match="changed after the study was planned"):
        LoadedModel(SETUP).at(ModelSpec("embedded", "another hash"))
