"""dualscope explore: starting, refusing, stopping."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

import dualscope
import dualscope.explorer


def test_other_machines_are_let_in_only_in_words(cli: Callable[..., Any]) -> None:
    code, _, err = cli("explore", "--host", "0.0.0.0")
    assert code == 2
    assert "without encryption" in err
    assert "--unsafe-host" in err


def test_a_port_that_is_taken_is_told(cli: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("explore", "--no-browser", "--port", port)
    assert code == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in err
    assert "--port" in err


def test_a_missing_package_says_what_to_install(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dualscope, "explorer", dualscope.explorer)  # put back with the modules
    for name in [name for name in sys.modules if name.startswith("dualscope.explorer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = cli("explore")
    assert code == 2
    assert "pip install 'dualscope[explore]'" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "nowhere"], "unknown task 'nowhere'"),
        (["--data", "/nowhere"], "--data /nowhere: no such folder"),
        (["--plugin", "/nowhere.py"], "--plugin /nowhere.py: no such file"),
        (["--model", "./nowhere"], "no such folder: ./nowhere"),
        (["--task", "embedded-sst2", "--task", "embedded-sst2"], "two tasks are called 'embedded-sst2'"),
    ],
)
def test_bad_options_are_told(cli: Callable[..., Any], options: list[str], words: str) -> None:
    code, _, err = cli("explore", "--no-browser", *options)
    assert code == 2
    assert words in err


def test_it_starts_answers_and_stops_at_ctrl_c() -> None:
    def fresh() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it

    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "dualscope.cli", "explore", "--no-browser", "--task", "embedded-sst2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=fresh,
        env=os.environ,
    )
    assert process.stdout is not None
    try:
        said = ""
        address = None
        for line in process.stdout:
            said += line
            if line.startswith("explorer:"):
                address = urlsplit(line.split()[1])
            if line.startswith("stop with"):
                break
        assert address is not None, said
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        connection.request("GET", f"/?{address.query}")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"dualscope explorer" in answer.read()
        connection.close()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said + rest
        assert "stopped" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
