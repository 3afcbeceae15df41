"""Connections that ask for nothing: they are closed after a while, and the oldest at once where there are many.

A request without the token is refused as soon as its head is there. So the slots are there for those who have it,
however many others connect and say nothing, or say it slowly.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

PATIENCE = 10.0  # seconds for the head of a request
MOST_SILENT = 32


class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which by itself waits for ever for a connection's first request."""

    cycle: Any  # the request that is being answered, or was last

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.loop = asyncio.get_running_loop()
        self._last = None
        self._look = self.loop.call_later(PATIENCE, self._close_if_silent)
        silent = [one for one in self.connections if one.cycle is None]
        for one in sorted(silent, key=lambda one: one._look.when())[: max(0, len(silent) - MOST_SILENT)]:
            one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        """Where since the last look no request has begun, and none is being answered."""
        if self.cycle is self._last and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._last = self.cycle
        self._look = self.loop.call_later(PATIENCE, self._close_if_silent)
