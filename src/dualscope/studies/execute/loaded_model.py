"""The one model that a worker holds."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualscope.models.files.digest import model_digest
from dualscope.studies.execute.outcome import CellError
from dualscope.studies.plugins import plugins_digest

if TYPE_CHECKING:
    from dualscope.core.spec import ModelSpec
    from dualscope.models import Model
    from dualscope.models.draws import Draws
    from dualscope.models.model_fingerprint import ModelFingerprint
    from dualscope.studies.execute.work import WorkerSetup


class LoadedModel:
    """Loads models one at a time; untrained weights are drawn once for all variants of a seed.

    ``ahead`` are the models of the work to come, as far as they are known: on an accelerator the weights that will be
    asked for next are drawn while it works.
    """

    def __init__(self, setting: WorkerSetup, ahead: Sequence[ModelSpec] = ()) -> None:
        self.setting, self._ahead = setting, tuple(dict.fromkeys(ahead))
        self._spec: ModelSpec | None = None
        self._model: Model | None = None
        self._draws: Draws | None = None
        self.seal: ModelFingerprint | None = None

    def holds(self, spec: ModelSpec) -> bool:
        return self._model is not None and self._spec == spec

    def at(self, spec: ModelSpec) -> Model:
        """The model that is meant, loaded."""
        if self._model is None or self._spec != spec:
            self._load(spec)
            assert self._model is not None
        return self._model

    def drop(self) -> None:
        """Let go of it: it is loaded anew when it is asked for."""
        self._model = None
        release_memory()

    def what_changed(self) -> str | None:
        """What a plugin changed in the model and did not put back; None where all is as it was."""
        return self.seal.broken(self._model.hf) if self.seal and self._model is not None else None

    def _load(self, spec: ModelSpec) -> None:
        from transformers.utils import logging

        from dualscope.models.draws import Draws
        from dualscope.models.load import load
        from dualscope.models.model_fingerprint import ModelFingerprint

        logging.disable_progress_bar()  # the run has bars of its own
        self.drop()
        # Else the cells' ids would lie about their rows.
        if model_digest(spec.source, self.setting.offline, spec.adapter, spec.adapter_mode) != spec.weights:
            raise CellError(f"the files of '{spec.name}' changed after the study was planned: run it again")
        self._draws = self._draws or Draws()
        self._draws.settle()  # transformers' settings are the process's: nothing is drawn while it loads
        self._model = load(
            spec.source,
            device=self.setting.device,
            dtype=spec.dtype,
            variant=spec.variant,
            init_seed=spec.init_seed or 0,
            offline=self.setting.offline,
            adapter=spec.adapter,
            adapter_mode=spec.adapter_mode,
            draws=self._draws,
        )
        self._spec = spec
        self.seal = ModelFingerprint.of(self._model.hf) if plugins_digest(self.setting.study.plugins) else None
        self._look_ahead(spec)

    def _look_ahead(self, spec: ModelSpec) -> None:
        """Begin to draw what the next variant of the same model will need; keep what it shares with this one."""
        from dualscope.models.model_variants import DRAWN

        assert self._model is not None
        assert self._draws is not None
        if spec not in self._ahead:
            return
        after = self._ahead[self._ahead.index(spec) + 1 :]
        coming = next((p for p in after if p.source == spec.source and p.variant in DRAWN), None)
        if coming is None:
            self._draws.forget()
        elif self._model.device.type != "cpu":  # else the cores have other things to do
            self._draws.prepare(self._model.hf, coming.init_seed or 0)


def release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
