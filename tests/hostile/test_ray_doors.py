"""The Ray engine on a machine with other users: other users cannot find its token, and a signal leaves nothing behind.

In the ordinary run the same cluster shows that nothing is sent, where strace can be had; on demand `test_wire` looks at
a run that goes to its end.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dualscope.core.errors import InputError
from dualscope.studies.execute.engines import ray as engine
from tests.hostile.test_wire import STRACE, is_traced, sent

ray = pytest.importorskip("ray", reason="the ray extra is not installed")
WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
NOBODY = 65534
NOWHERE = "http://192.0.2.1:9"  # an address that is reserved for documents
SLEEPY = '''
import time
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("sleeps")
class Sleeps(Learner):
    """Takes its time."""
    def learn(self, bench, lr, options):
        time.sleep(300)
        return Learned(bench.zero_shot)
'''
SPY = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
token, found, seen = sys.argv[1], [], 0
for top in sys.argv[2:]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and token in open(path, errors="replace").read(10_000_000):
                    found.append(path)
                seen += 1
            except OSError:
                pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            if token in open(f"/proc/{pid}/{name}", errors="replace").read():
                found.append(f"/proc/{pid}/{name}")
            seen += 1
        except OSError:
            pass
print(seen, *[path for path in found if path != f"/proc/{os.getpid()}/cmdline"], sep="\\n")
"""


def _as_root() -> tuple[str, ...] | None:
    """What makes root of a command, where anything does: the continuous integration's user may."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ("sudo", "-n")
    return None


class Running:
    """A study on a cluster of its own, in the middle of its work."""

    def __init__(self, home: Path, model: str, task: str, log: Path | None) -> None:
        (home / "sleepy.py").write_text(SLEEPY)
        self.log = log
        command = [] if log is None else [*STRACE, "-o", str(log)]
        command += [sys.executable, "-m", "dualscope.cli", "run", "--model", model, "--task", task]
        command += ["--engine", "ray", "--jobs", "1", "--learner", "sleeps", "--plugin", str(home / "sleepy.py")]
        command += ["--offline"]
        command += ["--seeds", "1", "--shots", "4", "--queries", "12", "--device", "cpu", "--out", str(home / "run")]
        settings = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        if log is not None:  # what would go through a proxy is seen on its way there
            settings |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"), NOWHERE)
        self.process = subprocess.Popen(
            command,
            env={**settings, "HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
            umask=0o022,
            start_new_session=True,
        )
        self.family: list[psutil.Process] = []

    def wait(self, ready: Callable[[], bool], most: float = 600.0) -> None:
        end = time.monotonic() + most
        while not ready():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.2)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    @property
    def program(self) -> int:
        """The number of the process that is ours: a tracer's first child, where there is one."""
        return self.process.pid if self.log is None else self.family[0].pid

    def of(self, name: str) -> psutil.Process:
        return next(one for one in self.family if name in one.name())


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that others may enter, as most are: not below pytest's own folder, which they may not."""
    place = Path(tempfile.mkdtemp(prefix="home-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def running(home: Path, model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> Iterator[Running]:
    traced = is_traced() and not WHOLE
    found = Running(home, model_folder, task_files[0], tmp_path / "strace.log" if traced else None)
    yield found
    found.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        found.process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(found.process.pid, signal.SIGKILL)
    for one in found.family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _find_no_token(running: Running, home: Path) -> None:
    server = running.of("gcs_server")
    token = server.environ()["RAY_AUTH_TOKEN"]
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    folders = {
        found[0] for one in running.family for found in re.findall(r"(/[^ =]*/ray-[^/ ]+)()", " ".join(one.cmdline()))
    }
    assert folders
    command = [sys.executable, "-c", SPY, token, str(home), *folders, "/tmp/ray"]
    spy = subprocess.run([*(_as_root() or ()), *command], capture_output=True, text=True)
    seen, *found = spy.stdout.split("\n")[:-1]
    assert spy.returncode == 0, spy.stderr
    assert int(seen) > 10
    assert found == []
    for folder in folders:
        assert os.stat(folder).st_mode & 0o077 == 0
    assert not (home / ".ray").exists()


def _end_in_words(running: Running, number: int, code: int) -> None:
    began = time.monotonic()
    os.kill(running.program, number)
    assert running.process.wait(20) == code
    assert running.process.stderr is not None
    said = running.process.stderr.read()
    assert "interrupted: " in said
    assert "Traceback" not in said
    psutil.wait_procs(running.family, timeout=max(0.0, 10 - (time.monotonic() - began)))
    assert [one for one in running.family if one.is_running()] == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.skipif(not WHOLE, reason="DUALSCOPE_WHOLE=1 runs it")),
    ],
)
def test_no_token_for_others_and_an_end_in_words(number: int, code: int, running: Running, home: Path) -> None:
    """Another user finds no token of a cluster that works; a signal ends it, and nothing is left."""
    running.wait(lambda: any((home / "run/claims").glob("*")))
    if sys.platform == "linux" and _as_root() is not None:  # only root can become another user
        _find_no_token(running, home)
    _end_in_words(running, number, code)
    if running.log is not None:
        assert sent(running.log.read_text(errors="replace")) == []


def test_a_token_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o644)
    settings: dict[str, Any] = {"RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_MODE": "token"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(InputError, match=r"other users may read .*chmod 600"):
        engine._check_token_file()
    file.chmod(0o600)
    engine._check_token_file()


IMPORTED_BEFORE = """
import ray
from ray import _raylet
from dualscope.studies.execute.engines import ray as engine

assert _raylet.get_authentication_mode() != _raylet.AuthenticationMode.TOKEN
ray.init = lambda **_: None
engine._connect(engine._ray(), None, "/tmp/room")
assert _raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN
assert _raylet.AuthenticationTokenLoader.instance().has_token()
"""


@pytest.mark.slow
def test_there_is_a_token_where_ray_was_imported_before() -> None:
    """By a notebook, or a plugin: else its cluster would not answer this process."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", IMPORTED_BEFORE], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
