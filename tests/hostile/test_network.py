"""What leaves the machine: with ``--offline`` nothing, without it what was asked for and nothing about the asker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.endpoint import Endpoint, Request, serving

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
JOBS = 2 if WHOLE else 1
ASKED = re.compile(r"/owner/tiny/resolve/[^/]+/[\w.]+")
NEEDED = {"host", "accept", "accept-encoding", "connection", "range", "user-agent", "x-amzn-trace-id"}
"""The last is the number of a request, drawn anew for each."""


@pytest.fixture(scope="module")
def endpoint(model_folder: str) -> Iterator[Endpoint]:
    with serving(Path(model_folder)) as found:
        yield found


ONE_BY_ONE = """
import contextlib, json, os, sys, urllib.request
from dualscope.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    if "BETWEEN" in os.environ:  # so that the requests of each command can be told apart
        with contextlib.suppress(OSError):
            urllib.request.urlopen(os.environ["BETWEEN"])
    sys.argv = ["dualscope", *command]
    try:
        main()
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code or 0)
print("codes:", codes)
sys.exit(max(codes))
"""
BEGUN = "/a-command-begins"


def _dualscope(
    endpoint: Endpoint, home: Path, *commands: tuple[object, ...]
) -> tuple[list[int], list[list[Request]], list[str]]:
    """Commands in one process of its own, which has read its settings of the network when it began: their exit codes,
    what each of them asked for, and all that they said to people.
    """
    endpoint.requests.clear()
    settings = {
        "BETWEEN": f"{endpoint.url}{BEGUN}",
        "HF_ENDPOINT": endpoint.url,
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "AI_AGENT": "somebody",
        "HF_HUB_DISABLE_XET": "1",
    }
    unset = {"HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"}
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps([list(map(str, command)) for command in commands])],
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k not in unset}, **settings},
        timeout=600,  # of a busy machine
    )
    assert "Traceback" not in done.stderr, done.stderr
    asked: list[list[Request]] = []
    for request in endpoint.requests:
        if request.path == BEGUN:
            asked.append([])
        else:
            asked[-1].append(request)
    assert len(asked) == len(commands)
    return json.loads(done.stdout.splitlines()[-1].removeprefix("codes: ")), asked, done.stderr.splitlines()


@pytest.mark.slow
def test_only_what_was_asked_for_and_offline_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    study = (
        *("run", "--model", "owner/tiny", "--task", "embedded-sst2", "--seeds", 1, "--shots", 2, "--queries", 4),
        *("--lr", "0.1", "--learner", "gd", "--device", "cpu", "--no-report"),
    )
    offline = (*study, "--offline", "--jobs", 1)
    asking = [
        (*offline, "--out", tmp_path / "absent"),  # nothing of the hub's library is imported yet
        (*study, "--out", tmp_path / "fetched", "--jobs", JOBS),
        ("validate", "sst2"),
    ]
    silent = [
        (*offline, "--out", tmp_path / "offline"),
        ("validate", "embedded-sst2", "--model", "owner/tiny", "--offline"),
        ("convert", "owner/tiny", tmp_path / "converted", "--offline"),
        ("validate", "sst2", "--offline"),
    ]
    if WHOLE:
        found = [_dualscope(endpoint, tmp_path, *commands) for commands in (asking, silent)]
        codes, asked, said = ([*one, *other] for one, other in zip(*found, strict=True))
    else:  # one process, which imports what it needs once
        codes, asked, said = _dualscope(endpoint, tmp_path, *asking, *silent)
    assert codes == [2, 0, 2, 0, 0, 2, 2], said
    assert any("in the local cache" in line for line in said), said
    absent, fetched, data, *others = asked
    assert fetched
    assert all(ASKED.fullmatch(request.path) for request in fetched), fetched
    assert data
    assert all("datasets" in request.path for request in data), data
    for request in (*fetched, *data):  # and not a word about us
        assert request.method in ("GET", "HEAD")
        assert request.headers["user-agent"] == "dualscope"
        assert set(request.headers) <= NEEDED, request.headers
    assert [absent, *others] == [[], [], [], [], []]
