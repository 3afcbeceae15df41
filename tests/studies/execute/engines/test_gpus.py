"""How many GPUs an actor asks for, and that it uses them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualscope.studies import Study
from dualscope.studies.execute.engines.gpus import MOST_ON_ONE, USABLE, gpus_for
from dualscope.studies.execute.engines.ray import Actor
from dualscope.studies.execute.work import WorkerSetup
from dualscope.studies.run_folder.storage import RunFolder

SIZES = st.integers(2**20, 2**42)


@given(needed=SIZES, one=SIZES)
def test_what_is_asked_for_is_enough_and_not_wasted(needed: int, one: int) -> None:
    asked = gpus_for(needed, one)
    if asked >= 1:
        assert asked == int(asked)
        assert needed <= asked * USABLE * one * (1 + 1e-12)
        assert asked == 1 or needed > (asked - 1) * USABLE * one * (1 - 1e-12)
    else:
        sharing = round(1 / asked)
        assert 1 < sharing <= MOST_ON_ONE
        assert sharing * asked <= 1
        assert sharing * needed <= USABLE * one


@pytest.mark.parametrize(("asked", "device"), [(2.0, "cuda:0,cuda:1"), (1.0, "auto"), (0.25, "auto")])
def test_an_actor_splits_its_model_over_all_that_it_was_given(
    asked: float, device: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is there: an actor looks at how many there are, and loads nothing yet."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    setting = WorkerSetup(str(RunFolder.create(tmp_path / "run").folder), Study.build(fields))
    actor = Actor(setting, asked)
    try:
        assert actor.worker.setting.device == device
    finally:
        actor.life.close()
