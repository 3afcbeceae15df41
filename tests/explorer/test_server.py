"""Raw HTTP: what is answered, what is told in words, and that the server lives on."""

import json
import os
import socket
import stat
import threading
import time
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from dualscope.explorer import server
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.jobs import MOST_WAITING
from dualscope.explorer.state import MOST_DEMONSTRATIONS, MOST_TEXT
from tests.explorer.served import Answer, Served, refused, state

SCRIPT = "<script>alert(1)</script>"


def test_a_page_of_ours_is_answered(served: Served) -> None:
    answer = served.compute()
    assert answer.status == 200
    assert [e["event"] for e in answer.events if e["event"] != "progress"][-1] == "done"
    assert {"zero-shot", "in-context", "gd", "lcgd"} <= answer.learned().keys()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    answer = served.ask("/api/compute", {"page": "x", "state": state()}, method=method)
    refused(answer, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"page": "x"}',
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b'{"page": 1, "state": 2}',
    ],
)
def test_what_is_no_state_is_told_in_words(served: Served, body: bytes) -> None:
    answer = served.ask("/api/compute", body=body)
    refused(answer, 400)
    assert answer.json["error"]


def with_text(text: str) -> dict[str, Any]:
    return {"demonstrations": [{"fields": {"text": text}, "label": 0}]}


@pytest.mark.parametrize(
    "more",
    [
        {"model": "/etc/passwd"},
        {"model": "../embedded"},
        {"model": "gpt2"},
        {"task": "sst2"},
        {"task": "/etc/passwd"},
        {"template": "no field"},
        {"template": "{text.__class__} Label:"},
        {"template": "{0} Label:"},
        {"template": "{text"},
        {"labels": ["one"]},
        {"labels": ["a", "a"]},
        {"labels": ["a", ""]},
        {"learners": ["nobody"]},
        {"focus": "nobody"},
        {"rate": 0},
        {"rate": -1},
        {"rate": "1"},
        {"rate": 1e300},
        {"steps": 0},
        {"seed": -1},
        {"version": 2},
        {"extra": 1},
        {"queries": []},
        {"demonstrations": []},
        {"demonstrations": [{"fields": {"text": "x"}, "label": 0}] * (MOST_DEMONSTRATIONS + 1)},
        {"demonstrations": [{"fields": {"text": "x"}, "label": 7}]},
        {"demonstrations": [{"fields": {"other": "x"}, "label": 0}]},
        {"demonstrations": [{"fields": {"text": 5}, "label": 0}]},
        with_text("x" * (MOST_TEXT + 1)),
        with_text(""),
        with_text("\ud800"),
        with_text(". " * 1990),
    ],
)
def test_bad_states_are_told_in_words(served: Served, more: dict[str, Any]) -> None:
    answer = served.compute(**more)
    assert b"Traceback" not in answer.body
    assert "gd" not in (answer.learned() if answer.status == 200 else {})
    said = answer.json["error"] if answer.status == 400 else answer.events[-1]["reason"]
    assert said
    assert "fault of" not in said


def test_numbers_that_json_should_not_have_are_refused(served: Served) -> None:
    body = json.dumps({"page": "x", "state": state()}).replace('"rate": 1.0', '"rate": NaN').encode()
    refused(served.ask("/api/compute", body=body), 400)


@pytest.mark.parametrize(
    "field", ["model", "template", "labels", "separator", "text", "query", "task", "learners", "focus", "page"]
)
def test_markup_in_every_field_is_text(served: Served, field: str) -> None:
    """Whatever comes back is JSON, typed as such; the browser's tests see it on the page."""
    one = {"fields": {"text": SCRIPT}, "label": 0}
    every: dict[str, dict[str, Any]] = {
        "model": {"model": SCRIPT},
        "template": {"template": SCRIPT + "{text}"},
        "labels": {"labels": [SCRIPT, "b"]},
        "separator": {"separator": SCRIPT},
        "text": {"demonstrations": [one]},
        "query": {"queries": [one]},
        "task": {"task": SCRIPT},
        "learners": {"learners": [SCRIPT]},
        "focus": {"focus": SCRIPT},
        "page": {},
    }
    answer = served.compute(page=SCRIPT if field == "page" else "test", **every[field])
    assert answer.status == 200
    assert (answer.events[0]["event"] == "failed") == (field in ("model", "task", "learners", "focus"))
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert served.lives()


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e/state.py",
        "/page//etc/passwd",
        "/page/index.html.j2",
        "/page/",
    ],
)
def test_no_path_comes_from_a_request(served: Served, path: str) -> None:
    assert served.ask(path, method="GET").status == 404


def test_ten_jobs_at_once_wait_or_are_sent_away(served: Served) -> None:
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(served.compute(page=f"page {i}", seed=100 + i)))
        for i in range(MOST_WAITING + 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert len(answers) == len(threads)
    assert {answer.status for answer in answers} <= {200, 429}
    for answer in answers:
        if answer.status == 200:
            assert answer.events[-1]["event"] == "done"
        else:
            assert "wait" in answer.json["error"]
    assert served.lives()


def test_a_new_edit_cancels_the_same_pages_job(served: Served) -> None:
    """Many edits in a row: each but the last is cut short or was done; the model is as it was before."""
    before = served.compute(page="calm").learned()["gd"]["probabilities"]
    answers: list[Answer] = []
    threads = []
    for i in range(6):
        thread = threading.Thread(target=lambda i=i: answers.append(served.compute(page="hasty", seed=200 + i)))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(timeout=300)
    last = [answer.events[-1]["event"] for answer in answers]
    assert set(last) <= {"done", "cancelled"}
    assert "cancelled" in last
    assert "done" in last
    assert served.compute(page="calm", seed=0).learned()["gd"]["probabilities"] == before


def test_the_browser_is_not_given_the_token(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a page that its owner alone can read, and that leads to the address."""
    opened: list[str] = []
    said: list[str] = []
    looked = threading.Event()
    seen: dict[str, int | str] = {}

    def open_(address: str) -> bool:
        opened.append(address)
        page = Path(unquote(urlsplit(address).path))
        seen.update(mode=stat.S_IMODE(os.stat(page).st_mode), folder=stat.S_IMODE(os.stat(page.parent).st_mode))
        seen["text"] = page.read_text(encoding="utf-8")
        looked.set()
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    started: list[object] = []
    real = server.prepared

    def prepared(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        started.append(found[0])
        return found

    monkeypatch.setattr(server, "prepared", prepared)
    with server.listening("127.0.0.1", None) as place:
        thread = threading.Thread(target=server.serve, args=(explorer.offer, place, True, said.append), daemon=True)
        thread.start()
        assert looked.wait(60)
        started[0].should_exit = True  # type: ignore[attr-defined]
        thread.join(20)
    assert not thread.is_alive()
    address = next(line.split()[-1] for line in said if line.startswith("explorer:"))
    token = address.partition("token=")[2]
    assert token
    assert opened[0].startswith("file://")
    assert token not in opened[0]
    assert (seen["mode"], seen["folder"]) == (0o600, 0o700)
    assert address in str(seen["text"])
    assert not Path(unquote(urlsplit(opened[0]).path)).exists()  # gone with the server


def _page(served: Served) -> int:
    return served.ask(f"/?token={served.token}", method="GET", Sec_Fetch_Site="none").status


def test_seventy_idle_connections_do_not_lock_the_owner_out(served: Served) -> None:
    idle = [socket.create_connection((served.host, served.port), timeout=30) for _ in range(200)]
    for one in idle[::2]:
        one.sendall(b"GET / HTTP/1.1\r\n")  # a head that never ends
    try:
        assert _page(served) == 200
    finally:
        for one in idle:
            one.close()


def test_a_silent_connection_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    for said in (b"", b"GET / HTTP/1.1\r\nHost:"):
        with socket.create_connection((served.host, served.port), timeout=5) as one:
            one.sendall(said)
            began = time.monotonic()
            assert one.recv(100) == b""
            assert time.monotonic() - began < 4
    assert _page(served) == 200


def test_connections_that_stay_after_an_answer_do_not_lock_the_owner_out(served: Served) -> None:
    """A script of the page is anybody's, and a connection may be kept for another request."""
    request = f"GET /page/main.js HTTP/1.1\r\nHost: {served.host}:{served.port}\r\n\r\n".encode()
    kept: list[socket.socket] = []
    try:
        for _ in range(200):
            one = socket.create_connection((served.host, served.port), timeout=30)
            kept.append(one)
            one.sendall(request)
            assert one.recv(20).startswith(b"HTTP/1.1 ")
        assert _page(served) == 200
        time.sleep(0.2)
        assert sum(_is_open(one) for one in kept) <= server.MOST_IDLE
    finally:
        for one in kept:
            one.close()


def _is_open(one: socket.socket) -> bool:
    one.settimeout(0.05)
    try:
        while one.recv(2**16):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False
