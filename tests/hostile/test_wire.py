"""What the kernel is asked to send by dualscope and by everything that it starts: with ``--offline`` nothing leaves the
machine, no name is looked up, and no proxy is asked. Seen by strace; where there is none, these tests skip.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.hostile.endpoint import Endpoint, serving
from tests.hostile.test_network import ONE_BY_ONE

CALLS = "connect,sendto,sendmsg,sendmmsg"
WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
JOBS = 2 if WHOLE else 1  # Ray's, below, computes in other processes anyhow
# With the filter in the kernel only these calls stop the process: all others would take several times as long.
STRACE = ["strace", "-f", "--seccomp-bpf", "-yy", "-s", "64", "-e", f"trace={CALLS}"]
CONNECT = re.compile(r"connect\(\d+<(TCP|TCPv6)[^{]*\{(?P<to>.*?)\}, \d+\)")
UDP = re.compile(r"(?:sendto|sendmsg|sendmmsg)\(\d+<UDP(?:v6)?:\[(?P<to>[^]>]*)")
ADDRESS = re.compile(r'(?:inet_addr\("|inet_pton\(AF_INET6, ")(?:::ffff:)?([^"]+)"')


@cache
def is_traced() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run([*STRACE, "-o", os.devnull, "true"], capture_output=True)
    return tried.returncode == 0


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_traced(), reason="needs strace, and the permission to trace")]


def _own() -> set[str]:
    return {one.address for every in psutil.net_if_addrs().values() for one in every} | {"127.0.0.1", "::1"}


def sent(log: str) -> list[str]:
    """The calls in a log that send something away from this machine, or look up a name wherever it is asked."""
    own, found = _own(), []
    for line in log.splitlines():
        if call := CONNECT.search(line):
            address = ADDRESS.search(call["to"])
            if address and not (address[1] in own or address[1].startswith("127.")):
                found.append(line)
        elif (call := UDP.search(line)) or "io.systemd.Resolve" in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def proxy(model_folder: str) -> Iterator[Endpoint]:
    with serving(Path(model_folder)) as found:
        yield found


def _traced(proxy: Endpoint, home: Path, *command: object) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command under strace; what it said, and what it sent."""
    proxy.requests.clear()
    log = home / "strace.log"
    ways = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"), proxy.url)
    unset = ("HF_HUB_OFFLINE", "DO_NOT_TRACK", "no_proxy", "NO_PROXY", "WANDB_MODE")
    kept = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith("RAY_")}
    done = subprocess.run(
        [*STRACE, "-o", str(log), sys.executable] + [str(one) for one in command],
        capture_output=True,
        text=True,
        env={**kept, **ways, "HOME": str(home), "HF_HOME": str(home / "hf")},
        cwd=home,
        timeout=600,
    )
    asked = [f"the proxy: {one.method} {one.path}" for one in proxy.requests]
    return done, sent(log.read_text(errors="replace")) + asked


def _dualscope(proxy: Endpoint, home: Path, *commands: tuple[object, ...]) -> list[str]:
    """What commands send, one after the other in one process."""
    done, found = _traced(proxy, home, "-c", ONE_BY_ONE, json.dumps([list(map(str, command)) for command in commands]))
    assert done.returncode == 0, done.stderr
    return found


def _study(model: str, task: str, out: Path) -> tuple[object, ...]:
    sizes = ("--seeds", 1, "--shots", 2, "--queries", 4, "--lr", "0.1", "--learner", "gd", "--device", "cpu")
    return ("run", "--model", model, "--task", task, *sizes, "--no-report", "--offline", "--out", out)


ASKING = """
import contextlib, socket, urllib.request
with contextlib.suppress(OSError):
    socket.getaddrinfo("metadata.google.internal", 80)
with contextlib.suppress(OSError):
    socket.create_connection(("169.254.169.254", 80), timeout=0.2)
with contextlib.suppress(OSError):
    urllib.request.urlopen("http://example.com/", timeout=5)
"""


def test_what_is_sent_is_seen(proxy: Endpoint, tmp_path: Path) -> None:
    """Else the other tests could not fail."""
    _, found = _traced(proxy, tmp_path, "-c", ASKING)
    text = "\n".join(found)
    assert "169.254.169.254" in text
    assert "the proxy: GET http://example.com/" in text
    names = Path("/etc/resolv.conf")
    if names.exists() and "nameserver" in names.read_text():
        assert "google" in text or ":53" in text


@pytest.mark.ray
@pytest.mark.skipif(not WHOLE, reason="DUALSCOPE_WHOLE=1 runs it; the test of Ray's doors looks at its own cluster")
def test_ray_sends_nothing(proxy: Endpoint, model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the ray extra is not installed")
    study = _study(model_folder, task_files[0], tmp_path / "run")
    assert _dualscope(proxy, tmp_path, (*study, "--engine", "ray", "--jobs", 1)) == []


TRACKERS = [name for name in ("mlflow", "wandb", "trackio") if find_spec(name)]


def test_nothing_else_sends(proxy: Endpoint, model_folder: str, task_files: tuple[str, str], tmp_path: Path) -> None:
    """A run, its report, its export to every tracker that is installed, and its packing."""
    run = tmp_path / "run"
    commands: list[tuple[object, ...]] = [
        (*_study(model_folder, task_files[0], run), "--jobs", JOBS),
        ("report", run, "--out", tmp_path / "page.html"),
        *(("export", run, "--to", to, "--out", tmp_path / to) for to in ("csv", *TRACKERS)),
        ("pack", run, "--out", tmp_path / "packed"),
    ]
    # Alone it would be seen which of them has sent something; together they load what they need once.
    for together in [[one] for one in commands] if WHOLE else [commands]:
        assert _dualscope(proxy, tmp_path, *together) == [], together
