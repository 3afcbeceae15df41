"""The local server: how it starts and stops, and what is answered under which address.

Connections that ask for nothing are closed after a while, and the oldest at once where there are many. A request
without the token is refused as soon as its head is there, or answered at once where it asks for the page's own scripts.
So slots are free for requests with the token, however many other connections say nothing, speak slowly or stay after
their answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.explorer import state as caps
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.guard import LOOPBACK, Guard, GuardRules, body_of
from dualscope.explorer.jobs import Jobs, TooMany, Watch
from dualscope.explorer.offer import Offer, drawn, pasted, recorded, start_of
from dualscope.explorer.read_only_page import PAGE, read_only_page, rendered
from dualscope.explorer.screen_as_code import share
from dualscope.explorer.state import State
from dualscope.report.page import TEMPLATES, to_json

PATIENCE = 10.0  # seconds for the head of a request
MOST_IDLE = 64


class ClosesSilentConnections(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which by itself waits for ever for a connection's first request. Silent ones are closed."""

    cycle: Any  # the request that is being answered, or was last

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.loop = asyncio.get_running_loop()
        self._last = None
        self._look = self.loop.call_later(PATIENCE, self._close_if_silent)
        idle = [one for one in self.connections if not one._is_answered]
        for one in sorted(idle, key=lambda one: one._look.when())[: max(0, len(idle) - MOST_IDLE)]:
            one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    @property
    def _is_answered(self) -> bool:
        """Whether a request is being answered now."""
        return self.cycle is not None and not self.cycle.response_complete

    def _close_if_silent(self) -> None:
        """Where since the last look no request has begun, and none is being answered."""
        if self.cycle is self._last and not self._is_answered:
            self.transport.close()
            return
        self._last = self.cycle
        self._look = self.loop.call_later(PATIENCE, self._close_if_silent)


FIRST_PORT = 8765
TRIES = 40


@dataclass(frozen=True)
class Listener:
    """A socket that listens, and how it is called."""

    socket: socket.socket
    host: str

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a browser may use for it."""
        if self.is_loopback:
            return LOOPBACK
        own = {socket.gethostname().lower(), self.host.lower(), _address_outside()}
        return (*LOOPBACK, *sorted(own - {"0.0.0.0", "::", *LOOPBACK}))


@contextmanager
def listening(host: str, port: int | None) -> Iterator[Listener]:
    """A port of one's choice, or the first free one."""
    for tried in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + TRIES):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, tried))
            found.listen()  # now and not when serving: two that have only bound a port may both believe it theirs
        except (TypeError, UnicodeError) as error:  # a name is encoded before it is looked up
            found.close()
            raise InputError(f"--host {host[:80]}: not the name of a machine ({error})") from None
        except OSError as error:
            found.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InputError(f"--host {host}: cannot be listened on ({error.strerror})") from None
            if port is not None:
                raise InputError(
                    f"port {tried} of {host} cannot be used ({error.strerror}); take another: --port"
                ) from None
            continue
        with found:
            yield Listener(found, host)
        return
    raise InputError(f"no port from {FIRST_PORT} to {FIRST_PORT + TRIES - 1} is free at {host}; name one: --port")


def serve(offer: Offer, place: Listener, open_browser: bool, say: Callable[[str], None]) -> None:
    """Until Ctrl-C."""
    explorer = Explorer(offer)
    began = time.perf_counter()
    model = explorer.model(offer.models[0])  # before the first request waits for it
    say(f"model:     {model.name}, {model.n_layers} layers, on {model.device} ({time.perf_counter() - began:.1f} s)")
    server, address = prepared(explorer, place)
    say(f"explorer:  {address}")
    say("stop with Ctrl-C")
    with redirection(address) as page:
        if open_browser:
            threading.Thread(target=_open, args=(server, page), daemon=True).start()
        try:
            server.run(sockets=[place.socket])
        except KeyboardInterrupt:
            say("stopped")


def prepared(explorer: Explorer, place: Listener) -> tuple[uvicorn.Server, str]:
    """A server that has not started, and the address that lets its page in."""
    rules = GuardRules.new(place.port, place.names)
    server = uvicorn.Server(
        uvicorn.Config(
            application(explorer, rules),
            log_level="warning",
            access_log=False,  # it would write the token down
            server_header=False,
            ws="none",
            http=ClosesSilentConnections,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
        )
    )
    name = place.host if place.is_loopback else place.names[-1]
    return server, f"http://{name}:{place.port}/?token={rules.token}"


@contextmanager
def in_background(explorer: Explorer) -> Iterator[str]:
    """A server beside what else this process does, and its address; for tests and benchmarks."""
    with listening(LOOPBACK[0], None) as place:
        server, address = prepared(explorer, place)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place.socket]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield address
        finally:  # also after an error: the process would otherwise wait for what is still being computed
            server.should_exit = True
            thread.join()


@contextmanager
def redirection(address: str) -> Iterator[Path]:
    """A page that leads to the address, and that its owner alone can read. A browser is started with the page's name:
    every user of the machine can read a program's arguments, and the address has the token in it.
    """
    with tempfile.TemporaryDirectory(prefix="dualscope-") as folder:
        page = Path(folder) / "explorer.html"
        page.touch(mode=0o600)
        leads = f'<meta http-equiv="refresh" content="0; url={escape(address)}">'
        page.write_text(f"<!doctype html><title>dualscope</title>{leads}\n", encoding="utf-8")
        yield page


def _open(server: uvicorn.Server, page: Path) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.02)
    webbrowser.open(page.as_uri())


def _address_outside() -> str:
    """The address that this machine has in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A documentation address: a datagram socket only looks up the way.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK[0]


KINDS = {".js": "text/javascript", ".css": "text/css"}


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    page: Annotated[str, Field(min_length=1, max_length=64)]
    """Which page it comes from."""


class StateRequest(_Request):
    """A request about what is on the screen."""

    state: State


class Drawn(_Request):
    """A request for examples of a task."""

    model: caps.Word
    task: caps.Word
    shots: int = Field(ge=1, le=caps.MOST_DEMONSTRATIONS)
    queries: int = Field(ge=1, le=caps.MOST_QUERIES)
    seed: int = Field(default=0, ge=0, lt=2**31)


class Pasted(_Request):
    """A table that was pasted."""

    text: Annotated[str, Field(max_length=200_000)]
    template: caps.Text
    labels: list[caps.Word] = Field(min_length=2, max_length=caps.MOST_LABELS)


Endpoint = Callable[[Request], Awaitable[Response]]


def _hand_on(explorer: Explorer, state: State, watch: Watch) -> None:
    watch.tell({"event": "page", "text": read_only_page(explorer, state, watch)})


WORK: dict[str, Callable[[Explorer, State, Watch], None]] = {
    "compute": Explorer.compute,
    "words": Explorer.words,
    "influence": Explorer.influence,
    "rate": Explorer.rate,
    "handed_on": _hand_on,
}
"""What takes its time and is told of line by line, by the last part of its address."""


def application(explorer: Explorer, rules: GuardRules) -> Guard:
    """The whole server as an ASGI application."""
    jobs = Jobs()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        jobs.close()

    async def page(_: Request) -> Response:
        text = rendered(to_json(start_of(explorer.offer)), inline=False)
        return Response(text, media_type="text/html; charset=utf-8")

    async def file(request: Request) -> Response:
        found = _files().get(request.path_params["name"])
        if found is None:
            return Response("no such file\n", 404, media_type="text/plain")
        return Response(found[0], media_type=f"{found[1]}; charset=utf-8")

    def answered(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = await _read(request, StateRequest)
            # Each kind has a line of its own: looking at words cancels nothing that is computed, and waits for it.
            job = jobs.start(f"{asked.page} {name}", lambda watch: WORK[name](explorer, asked.state, watch))
            return StreamingResponse(job.lines(), media_type="application/x-ndjson")

        return endpoint

    async def draw(request: Request) -> Response:
        asked = await _read(request, Drawn)
        task = explorer.offer.task(asked.task)
        found = await run_in_threadpool(drawn, task, asked.shots, asked.queries, asked.seed)
        return JSONResponse({**found, "rate": recorded(explorer.offer.check_model(asked.model), task)})

    async def paste(request: Request) -> Response:
        asked = await _read(request, Pasted)
        return JSONResponse({"examples": pasted(asked.text, asked.template, asked.labels)[: caps.MOST_DEMONSTRATIONS]})

    async def shared(request: Request) -> Response:
        asked = await _read(request, StateRequest)
        explorer.offer.check_model(asked.state.model)
        explorer.offer.check_learners((*asked.state.learners, asked.state.focus))
        return JSONResponse(share(explorer, asked.state))

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", file),
            *(
                Route(f"/api/{name}", _talking(endpoint), methods=["POST"])
                for name, endpoint in (
                    *((name, answered(name)) for name in WORK),
                    *(("draw", draw), ("paste", paste), ("shared", shared)),
                )
            ),
        ],
        lifespan=lifespan,
    )
    return Guard(app, rules)


def _talking(endpoint: Endpoint) -> Endpoint:
    """Bad input is one message in words."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except _TooLarge:
            return JSONResponse({"error": "the request is too large"}, 413, {"Connection": "close"})
        except TooMany:
            return JSONResponse({"error": "too many wait already; try again in a moment"}, 429)

    return answer


class _TooLarge(Exception):
    pass


async def _read(request: Request, kind: type[Any]) -> Any:
    body = await body_of(request)
    if body is None:
        raise _TooLarge
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    if not isinstance(content, dict):
        raise InputError("the request is not a JSON object")
    return validated(kind, content, "request")


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str]]:
    """Every file that is served, by name: nothing else can be asked for, so no path comes from a request."""
    from plotly.offline import get_plotlyjs

    own = [path for path in (*PAGE.iterdir(), TEMPLATES / "style.css", TEMPLATES / "plots.js") if path.suffix in KINDS]
    found = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in own}
    return found | {"plotly.js": (get_plotlyjs().encode(), KINDS[".js"])}
