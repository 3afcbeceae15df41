"""The local page: what is answered under which address."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.explorer import state as caps
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.guard import Guard, GuardRules, body_of
from dualscope.explorer.jobs import Jobs, TooMany
from dualscope.explorer.paste import pasted
from dualscope.explorer.read_only_page import PAGE, read_only_page, rendered
from dualscope.explorer.screen_as_code import share
from dualscope.explorer.start import drawn, recorded, start_of
from dualscope.explorer.state import State
from dualscope.explorer.watch import Watch
from dualscope.report.page import TEMPLATES, to_json

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


def application(explorer: Explorer, rules: GuardRules) -> Guard:
    """The whole server as an ASGI application."""
    jobs = Jobs()

    @contextlib.asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
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

    async def compute(request: Request) -> Response:
        asked = await _read(request, StateRequest)
        job = jobs.start(asked.page, lambda watch: explorer.compute(asked.state, watch))
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

    async def words(request: Request) -> Response:
        asked = await _read(request, StateRequest)
        # A line of its own: looking at words does not cancel what is being computed, and waits for it.
        job = jobs.start(f"{asked.page} words", lambda watch: explorer.words(asked.state, watch))
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

    async def influence(request: Request) -> Response:
        asked = await _read(request, StateRequest)
        job = jobs.start(f"{asked.page} influence", lambda watch: explorer.influence(asked.state, watch))
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

    async def rate(request: Request) -> Response:
        asked = await _read(request, StateRequest)
        job = jobs.start(f"{asked.page} rate", lambda watch: explorer.rate(asked.state, watch))
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

    async def handed_on(request: Request) -> Response:
        asked = await _read(request, StateRequest)

        def work(watch: Watch) -> None:
            watch.tell({"event": "page", "text": read_only_page(explorer, asked.state, watch)})

        job = jobs.start(f"{asked.page} page", work)
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

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
                Route(f"/api/{endpoint.__name__}", _talking(endpoint), methods=["POST"])
                for endpoint in (compute, words, influence, rate, handed_on, draw, paste, shared)
            ),
        ],
        lifespan=living,
    )
    return Guard(app, rules)


Endpoint = Callable[[Request], Awaitable[Response]]


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
