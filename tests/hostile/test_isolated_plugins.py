"""``--isolate-plugins``: a plugin's code runs in processes of its own, and reaches nobody else's rows."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study
from dualscope.core.errors import InputError
from dualscope.studies.plugins import Apart
from tests.studies.children import CONTEXT
from tests.studies.execute.test_plugin_isolation import KEPT

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
PATCHING = '''
import os, threading, time
from pathlib import Path
import torch
from dualscope import LEARNERS, Learned, Learner
from dualscope.choosing.halving import Choice
from dualscope.core.options import Options

with open(Path(__file__).with_suffix(".pids"), "a") as file:
    file.write(f"{os.getpid()}\\n")
plain = torch.Tensor.log_softmax
torch.log_softmax = torch.Tensor.log_softmax = lambda x, *a, **k: plain(x, *a, **k) * 0.5

class Mine(Learner):
    """Says where it is computed."""
    def learn(self, bench, lr, options):
        with open(Path(__file__).with_suffix(f".{type(self).__name__}"), "a") as file:
            file.write(f"{os.getpid()}\\n")
        return Learned(bench.zero_shot)

class Where(Options):
    layer: int | None = None

@LEARNERS.register("one")
class One(Mine):
    """One, which leaves a layer open."""
    options = Where
    def is_open(self, options):
        return options.layer is None
    def choose(self, benches, options):
        with open(Path(__file__).with_suffix(".choice"), "a") as file:
            file.write(f"{os.getpid()}\\n")
        return Choice(settings={"layer": 1}, curve=({"layer": 1, "nll": 0.0},), n=1)

@LEARNERS.register("two")
class Two(Mine):
    """Two, which leaves a thread running that would keep its process alive for ever."""
    def learn(self, bench, lr, options):
        threading.Thread(target=lambda: time.sleep(3600)).start()
        return super().learn(bench, lr, options)
'''


def _values(run: Any, learner: str) -> list[str]:
    return sorted(repr([row[n] for n in KEPT]) for row in run.rows().to_pylist() if row["learner"] == learner)


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "patching.py"
    file.write_text(PATCHING)
    return file


def _pids(plugin: Path, suffix: str) -> set[int]:
    file = plugin.with_suffix(suffix)
    return {int(line) for line in file.read_text().split()} if file.exists() else set()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes come from a server that has imported what they need: spawned ones import for seconds each."""
    if not WHOLE:
        monkeypatch.setattr(multiprocessing, "get_context", lambda _: CONTEXT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "jobs"),
    [
        ("local", 1),
        pytest.param("ray", 2, marks=[pytest.mark.ray, pytest.mark.skipif(not WHOLE, reason="DUALSCOPE_WHOLE=1")]),
    ],
)
def test_what_an_import_patches_reaches_nobody(
    engine: str, jobs: int, fields: dict[str, Any], plugin: Path, forget: None, forked: None, tmp_path: Path
) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="the ray extra is not installed")
    small = fields | {"seeds": 1}
    plain = run_study(small, tmp_path / "plain", device="cpu").run
    study = small | {"plugins": [str(plugin)], "learners": ["one", "two", "gd"]}
    result = run_study(study, tmp_path / "run", device="cpu", jobs=jobs, engine=engine, isolate_plugins=True)
    # What `two` leaves running is found by the check that a cell with a plugin's code has anyhow.
    assert ["a thread that goes on running" in failure.reason for failure in result.failures] == [True]
    run = result.run
    for learner in ("zero-shot", "in-context", "gd"):
        assert _values(run, learner) == _values(plain, learner)
    assert _values(run, "one")
    assert not _values(run, "two")
    every, one, two, choice = (_pids(plugin, suffix) for suffix in (".pids", ".One", ".Two", ".choice"))
    assert len(one) == len(two) == 1
    assert not one & two
    assert one | two < every  # another one is asked what the learners are
    assert choice  # what a plugin's learner leaves open is chosen in a process of its own, too
    assert choice <= every
    assert os.getpid() not in every


def test_without_it_an_import_does_reach_others(
    fields: dict[str, Any], plugin: Path, forget: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above could not fail."""
    import torch

    for owner in (torch, torch.Tensor):
        monkeypatch.setattr(owner, "log_softmax", owner.log_softmax)
    small = fields | {"seeds": 1}
    plain = run_study(small, tmp_path / "plain", device="cpu").run
    study = small | {"plugins": [str(plugin)], "learners": ["one", "gd"]}
    patched = run_study(study, tmp_path / "run", device="cpu").run
    assert _values(patched, "gd") != _values(plain, "gd")


def test_without_a_plugin_it_is_refused(cli: Callable[..., Any], tmp_path: Path) -> None:
    done = cli("run", "--isolate-plugins", "--dry-run", "--task", "embedded-sst2", "--out", tmp_path / "run")
    assert done.code == 2
    assert "--isolate-plugins: no plugin is installed" in done.err


def test_a_plugin_that_ends_the_process_that_asks_is_named(
    fields: dict[str, Any], forked: None, tmp_path: Path
) -> None:
    file = tmp_path / "ends.py"
    for code, said in (("import os; os._exit(3)", "ended the process"), ("1 / 0", "division by zero")):
        file.write_text(code)
        study = fields | {"plugins": [str(file)]}
        with pytest.raises(InputError, match=said):
            run_study(study, tmp_path / "run", device="cpu", isolate_plugins=True)


def test_questions_are_answered_elsewhere() -> None:
    apart = Apart()
    there = apart.ask(os.getpid)
    assert there not in (os.getpid(), None)
    assert apart.ask(os.getpid) == there
    with pytest.raises(InputError, match="ValueError: invalid literal"):
        apart.ask(int, "x")
    before = threading.active_count()
    apart.end()
    end = time.monotonic() + 10
    while Path(f"/proc/{there}").exists():
        assert time.monotonic() < end
    assert threading.active_count() == before
    assert apart.ask(os.getpid) != there
    apart.end()
