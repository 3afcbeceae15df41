"""The one model that a worker holds."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualscope.models.files.digest import model_digest
from dualscope.studies.execute.outcome import CellError
from dualscope.studies.plugins import plugins_digest

if TYPE_CHECKING:
    from dualscope.models import Model
    from dualscope.models.draws import Draws
    from dualscope.models.seal import Seal
    from dualscope.studies.cell import Place
    from dualscope.studies.execute.work import WorkerSetup


class LoadedModel:
    """Loads models one at a time; untrained weights are drawn once for all variants of a seed.

    ``ahead`` are the places of the work to come, as far as they are known: on an accelerator the weights that will be
    asked for next are drawn while it works.
    """

    def __init__(self, setting: WorkerSetup, ahead: Sequence[Place] = ()) -> None:
        self.setting, self._ahead = setting, tuple(dict.fromkeys(ahead))
        self._place: Place | None = None
        self._model: Model | None = None
        self._draws: Draws | None = None
        self.seal: Seal | None = None

    def holds(self, place: Place) -> bool:
        return self._model is not None and self._place == place

    def at(self, place: Place) -> Model:
        """The model as it is loaded there."""
        if self._model is None or self._place != place:
            self._load(place)
            assert self._model is not None
        return self._model

    def drop(self) -> None:
        """Let go of it: it is loaded anew when it is asked for."""
        self._model = None
        release_memory()

    def what_changed(self) -> str | None:
        """What a plugin changed in the model and did not put back; None where all is as it was."""
        return self.seal.broken(self._model.hf) if self.seal and self._model is not None else None

    def _load(self, place: Place) -> None:
        from transformers.utils import logging

        from dualscope.models.draws import Draws
        from dualscope.models.load import load
        from dualscope.models.seal import Seal

        logging.disable_progress_bar()  # the run has bars of its own
        self.drop()
        # Else the cells' ids would lie about their rows.
        if (
            model_digest(place.model, self.setting.offline, place.adapter, place.adapter_mode)
            != place.weights
        ):
            raise CellError(f"the files of '{place.name}' changed after the study was planned: run it again")
        self._draws = self._draws or Draws()
        self._draws.settle()  # transformers' settings are the process's: nothing is drawn while it loads
        self._model = load(
            place.model,
            device=self.setting.device,
            dtype=place.dtype,
            variant=place.variant,
            init_seed=place.init_seed or 0,
            offline=self.setting.offline,
            adapter=place.adapter,
            adapter_mode=place.adapter_mode,
            draws=self._draws,
        )
        self._place = place
        self.seal = Seal.of(self._model.hf) if plugins_digest(self.setting.study.plugins) else None
        self._look_ahead(place)

    def _look_ahead(self, place: Place) -> None:
        """Begin to draw what the next variant of the same model will need; keep what it shares with this one."""
        from dualscope.models.variants import DRAWN

        assert self._model is not None
        assert self._draws is not None
        if place not in self._ahead:
            return
        after = self._ahead[self._ahead.index(place) + 1 :]
        coming = next((p for p in after if p.model == place.model and p.variant in DRAWN), None)
        if coming is None:
            self._draws.forget()
        elif self._model.device.type != "cpu":  # else the cores have other things to do
            self._draws.prepare(self._model.hf, coming.init_seed or 0)


def release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
