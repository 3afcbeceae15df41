"""Who may ask: this machine's own browser, from the page that was opened here, and no other program or site."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dualscope.explorer.state import MOST_BODY

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "X-Dualscope-Token"
LOOPBACK = ("127.0.0.1", "localhost")
HEADERS: Mapping[str, str] = {
    # No script but our own files; nothing from elsewhere; no other page may show this one in a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class GuardRules:
    """The token of this start, and the names under which the server answers."""

    token: str
    port: int
    hosts: tuple[str, ...] = LOOPBACK

    @classmethod
    def new(cls, port: int, hosts: tuple[str, ...] = LOOPBACK) -> GuardRules:
        return cls(secrets.token_urlsafe(24), port, hosts)

    @property
    def authorities(self) -> frozenset[str]:
        """Exact values of the Host header: a foreign name that points here (DNS rebinding) is none of them."""
        bare = self.hosts if self.port == 80 else ()
        return frozenset((*(f"{host}:{self.port}" for host in self.hosts), *bare))

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """A status and why, or None where the request may go on."""
        headers = request.headers
        if headers.get("host", "").lower() not in self.authorities:
            return 421, "this server does not answer under that name"
        site = headers.get("sec-fetch-site")
        if request.method in ("GET", "HEAD"):
            if request.url.path == "/":
                return self._refuse_page(request)
            # A page elsewhere may not pull in our scripts.
            return (403, "not from this page") if site in ("cross-site", "same-site") else None
        if request.method != "POST":
            return 405, "only GET and POST are answered"
        if headers.get("origin", "").lower() not in {f"http://{name}" for name in self.authorities}:
            return 403, "not from this page"
        if site not in (None, "same-origin"):
            return 403, "not from this page"
        if not self.knows(headers.get(TOKEN, "")):
            return (
                401,
                "the token is missing or of an earlier start; open the address that `dualscope explore` printed",
            )
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "only application/json is read"
        return self._refuse_size(headers)

    def _refuse_page(self, request: Request) -> tuple[int, str] | None:
        if request.headers.get("sec-fetch-dest") not in (None, "document", "empty"):
            return 403, "the page cannot be put into another"
        if not self.knows(request.query_params.get("token", "")):
            return (
                401,
                "Open the address that `dualscope explore` printed: its token lets you in. It is new with every start.",
            )
        return None

    @staticmethod
    def _refuse_size(headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "the length of the request is no number"
        return (413, f"a request has at most {MOST_BODY} bytes") if int(length) > MOST_BODY else None

    def knows(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())


class Guard:
    """Every request passes here first; every answer leaves with the headers that close the page to others."""

    def __init__(self, app: ASGIApp, rules: GuardRules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: there are none here
            return
        request = Request(scope)
        refused = self.rules.refusal(request)

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                # What was refused may still be sending a body, which is not read.
                own += [(b"connection", b"close")] if refused else []
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        if refused is None:
            await self.app(scope, receive, closed)
        else:
            await _sorry(request, *refused)(scope, receive, closed)


def _sorry(request: Request, status: int, why: str) -> Response:
    if request.method == "GET":
        return Response(f"{why}\n", status, media_type="text/plain")
    return JSONResponse({"error": why}, status)


async def body_of(request: Request) -> bytes | None:
    """The body, or None where it is larger than it may be, whatever its header said."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BODY:
            return None
    return bytes(found)
