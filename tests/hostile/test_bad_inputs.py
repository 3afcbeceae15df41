"""Whatever a person or a stranger's file gives: one message that names it, exit code 2, no traceback, soon."""

import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.inputs import TABLE, third_round
from tests.hostile.inputs.bad import Bad, Place
from tests.hostile.test_endless_files import soon

SAMPLE = 90
CORES = os.cpu_count() or 1
WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
CHOSEN = TABLE if WHOLE else [*third_round.TABLE, *random.Random(17).sample(TABLE[: -len(third_round.TABLE)], SAMPLE)]


def test_there_are_enough() -> None:
    assert len(TABLE) >= 600
    assert len({bad.name for bad in TABLE}) == len(TABLE)


@pytest.mark.parametrize("bad", CHOSEN, ids=lambda bad: re.sub(r"[^\w.-]+", "-", bad.name)[:60])
def test_bad_input(bad: Bad, cli: Callable[..., Any], forget: None, model_folder: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    bad.make(Place(here, Path(model_folder)))
    began, used = time.perf_counter(), time.process_time()
    with soon():
        result = cli(*(argument.replace("{here}", str(here)) for argument in bad.arguments))
    took, computed = time.perf_counter() - began, time.process_time() - used
    said = " ".join(result.err.split())
    assert result.code == 2, (result.code, said[-600:], result.out[-300:])
    assert "Traceback" not in result.err
    assert re.search(bad.said, said), said
    assert not (here / "run").exists()
    # Of a machine that does something else as well, what was computed is looked at; a wait is a wait on any.
    assert computed < 10, f"{computed:.1f} s"
    assert took < (10 if os.getloadavg()[0] < CORES else 120), f"{took:.1f} s"
