"""Connections that ask for nothing: they are closed after a while, and the oldest at once where there are many.

A request without the token is refused as soon as its head is there, or answered at once where it is for the page's own
scripts. So the slots are there for those who have it, however many others connect and say nothing, or say it slowly, or
stay when they have been answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

PATIENCE = 10.0  # seconds for the head of a request
MOST_IDLE = 64


class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which by itself waits for ever for a connection's first request."""

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
