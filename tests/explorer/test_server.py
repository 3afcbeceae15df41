"""Raw HTTP: who is refused, with what status, and that the server lives on."""

import json
import socket
import threading
from typing import Any

import pytest

from dualscope.explorer.jobs import MOST_WAITING
from dualscope.explorer.state import MOST_DEMONSTRATIONS, MOST_TEXT
from tests.explorer.served import Answer, Served, state

SCRIPT = "<script>alert(1)</script>"


def refused(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert b"Traceback" not in answer.body
    assert b'"learned"' not in answer.body


def test_a_page_of_ours_is_answered(served: Served) -> None:
    answer = served.compute()
    assert answer.status == 200
    assert [e["event"] for e in answer.events if e["event"] != "progress"][-1] == "done"
    assert {"zero-shot", "in-context", "gd", "lcgd"} <= answer.learned().keys()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "",
        None,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_host_is_refused(served: Served, host: str | None, method: str) -> None:
    name = host.format(port=served.port) if host is not None else None
    path = f"/?token={served.token}" if method == "GET" else "/api/compute"
    answer = served.ask(path, {"page": "x", "state": state()}, method=method, Host=name)
    assert answer.status in (400, 421)  # without a Host at all the server itself says 400
    assert b"start" not in answer.body or method == "POST"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", None]
)
def test_a_foreign_origin_is_refused(served: Served, origin: str | None) -> None:
    name = origin.format(port=served.port) if origin is not None else None
    refused(served.ask("/api/compute", {"page": "x", "state": state()}, Origin=name), 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_fetch_metadata_of_elsewhere_is_refused(served: Served, site: str) -> None:
    refused(served.ask("/api/compute", {"page": "x", "state": state()}, Sec_Fetch_Site=site), 403)


@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_a_missing_or_wrong_token_is_refused(served: Served, token: str | None) -> None:
    sent = token.encode().decode("latin-1") if token else token
    refused(served.ask("/api/compute", {"page": "x", "state": state()}, X_Dualscope_Token=sent), 401)


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong"])
def test_the_page_itself_needs_the_token(served: Served, query: str) -> None:
    answer = served.ask(f"/{query}", method="GET", Sec_Fetch_Site="none")
    refused(answer, 401)
    assert b"Open the address" in answer.body


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None, "application/jsonp"],
)
def test_only_json_is_read(served: Served, kind: str | None) -> None:
    refused(served.ask("/api/compute", {"page": "x", "state": state()}, Content_Type=kind), 415)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    answer = served.ask("/api/compute", {"page": "x", "state": state()}, method=method)
    refused(answer, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_hundred_megabytes_are_refused_before_they_are_read(served: Served) -> None:
    with socket.create_connection((served.host, served.port), timeout=30) as raw:
        head = (
            f"POST /api/compute HTTP/1.1\r\nHost: {served.host}:{served.port}\r\nOrigin: {served.origin}\r\n"
            f"X-Dualscope-Token: {served.token}\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
        )
        raw.sendall(head.encode() + b"[" * 1000)
        assert b" 413 " in raw.recv(200)
    assert served.lives()


def test_a_hundred_megabytes_without_a_length_are_refused(served: Served) -> None:
    with socket.create_connection((served.host, served.port), timeout=30) as raw:
        head = (
            f"POST /api/compute HTTP/1.1\r\nHost: {served.host}:{served.port}\r\nOrigin: {served.origin}\r\n"
            f"X-Dualscope-Token: {served.token}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        raw.sendall(head.encode())
        chunk = b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
        try:
            for _ in range(1600):
                raw.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all was sent
        else:
            pytest.fail("all of it was read")
    assert served.lives()


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
    "field",
    ["model", "template", "labels", "separator", "text", "query", "task", "learners", "focus", "page"],
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


def test_every_answer_closes_the_page_to_others(served: Served) -> None:
    for answer in (
        served.ask(f"/?token={served.token}", method="GET", Sec_Fetch_Site="none"),
        served.ask("/page/main.js", method="GET"),
        served.ask("/", method="GET"),
        served.ask("/nowhere", method="GET"),
        served.compute(),
        served.ask("/api/compute", {}),
    ):
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    page = served.ask(f"/?token={served.token}", method="GET", Sec_Fetch_Site="none")
    assert page.status == 200
    assert served.token.encode() not in page.body


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


def test_our_scripts_are_not_for_other_sites(served: Served) -> None:
    assert served.ask("/page/main.js", method="GET", Sec_Fetch_Site="cross-site").status == 403
    framed = served.ask(
        f"/?token={served.token}", method="GET", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="iframe"
    )
    assert framed.status == 403


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
        thread = threading.Thread(
            target=lambda i=i: answers.append(served.compute(page="hasty", seed=200 + i))
        )
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(timeout=300)
    last = [answer.events[-1]["event"] for answer in answers]
    assert set(last) <= {"done", "cancelled"}
    assert "cancelled" in last
    assert "done" in last
    assert served.compute(page="calm", seed=0).learned()["gd"]["probabilities"] == before
