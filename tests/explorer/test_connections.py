"""Connections that say nothing lock nobody out, and do not stay."""

import socket
import time

import pytest

from dualscope.explorer import connections
from tests.explorer.served import Served


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
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
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
        assert sum(_is_open(one) for one in kept) <= connections.MOST_IDLE
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
