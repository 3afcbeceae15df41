"""Raw HTTP: who is refused, and with what status."""

import socket

import pytest

from tests.explorer.served import Served, refused, state


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.evil.example", "", None],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_host_is_refused(served: Served, host: str | None, method: str) -> None:
    name = host.format(port=served.port) if host is not None else None
    path = f"/?token={served.token}" if method == "GET" else "/api/compute"
    # The server hangs up on a request without a Host: a body that it never read would reset the connection.
    body = b"" if host is None else None
    answer = served.ask(path, {"page": "x", "state": state()}, method=method, body=body, Host=name)
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
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None, "application/jsonp"]
)
def test_only_json_is_read(served: Served, kind: str | None) -> None:
    refused(served.ask("/api/compute", {"page": "x", "state": state()}, Content_Type=kind), 415)


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


def test_our_scripts_are_not_for_other_sites(served: Served) -> None:
    assert served.ask("/page/main.js", method="GET", Sec_Fetch_Site="cross-site").status == 403
    framed = served.ask(f"/?token={served.token}", method="GET", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="iframe")
    assert framed.status == 403
