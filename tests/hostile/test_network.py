"""What leaves the machine: with ``--offline`` nothing, without it what was asked for and nothing about the asker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.endpoint import Endpoint, serving

JOBS = 2 if os.environ.get("DUALSCOPE_WHOLE") else 1
ASKED = re.compile(r"/owner/tiny/resolve/[^/]+/[\w.]+")
NEEDED = {"host", "accept", "accept-encoding", "connection", "range", "user-agent", "x-amzn-trace-id"}
"""The last is the number of a request, drawn anew for each."""


@pytest.fixture(scope="module")
def endpoint(model_folder: str) -> Iterator[Endpoint]:
    with serving(Path(model_folder)) as found:
        yield found


ONE_BY_ONE = """
import json, sys
from dualscope.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["dualscope", *command]
    try:
        main()
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code or 0)
print("codes:", codes)
sys.exit(max(codes))
"""


def _dualscope(endpoint: Endpoint, home: Path, *commands: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    """Commands in one process of its own, which has read its settings of the network when it began."""
    settings = {
        "HF_ENDPOINT": endpoint.url,
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "AI_AGENT": "somebody",
        "HF_HUB_DISABLE_XET": "1",
    }
    unset = {"HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"}
    return subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps([list(map(str, command)) for command in commands])],
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k not in unset}, **settings},
        timeout=600,  # of a busy machine
    )


@pytest.mark.slow
def test_only_what_was_asked_for_and_offline_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    study = (
        *("run", "--model", "owner/tiny", "--task", "embedded-sst2", "--seeds", 1, "--shots", 2, "--queries", 4),
        *("--lr", "0.1", "--learner", "gd", "--device", "cpu", "--no-report"),
    )
    absent = _dualscope(endpoint, tmp_path, (*study, "--out", tmp_path / "absent", "--offline"))
    assert absent.returncode == 2, absent.stderr
    assert "not in the local cache" in absent.stderr or "in the local cache (offline)" in absent.stderr
    assert endpoint.requests == []
    fetched = _dualscope(endpoint, tmp_path, (*study, "--out", tmp_path / "fetched", "--jobs", JOBS))
    assert fetched.returncode == 0, fetched.stderr
    assert endpoint.requests
    for request in endpoint.requests:
        assert request.method in ("GET", "HEAD")
        assert ASKED.fullmatch(request.path), request.path
        assert request.headers["user-agent"] == "dualscope"
        assert set(request.headers) <= NEEDED, request.headers
    endpoint.requests.clear()
    done = _dualscope(
        endpoint,
        tmp_path,
        (*study, "--out", tmp_path / "offline", "--offline", "--jobs", 1),
        ("validate", "embedded-sst2", "--model", "owner/tiny", "--offline"),
        ("convert", "owner/tiny", tmp_path / "converted", "--offline"),
        ("validate", "sst2", "--offline"),
    )
    assert done.stdout.splitlines()[-1] == "codes: [0, 0, 2, 2]", done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert endpoint.requests == []


@pytest.mark.slow
def test_a_data_set_is_asked_for_without_a_word_about_us(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.requests.clear()
    done = _dualscope(endpoint, tmp_path, ("validate", "sst2"))
    assert done.returncode == 2, done.stderr
    assert endpoint.requests
    for request in endpoint.requests:
        assert "datasets" in request.path, request.path
        assert request.headers["user-agent"] == "dualscope"
        assert set(request.headers) <= NEEDED, request.headers
