"""What leaves this machine: what was asked for, and with ``--offline`` nothing.

The hub's libraries read their settings from the environment when they are imported, so these are set when dualscope
itself is imported: before any command or worker can have imported them. Where they were imported earlier (a
notebook), the same settings are made in them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGENT = "dualscope"
SILENCE = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers would ask a service to convert pickles
    "RAY_USAGE_STATS_ENABLED": "0",
}
OFFLINE = "HF_HUB_OFFLINE"
PATIENCE = 5.0  # seconds in which the hub has to take a connection


def silence() -> None:
    """No telemetry from the libraries that we use, in this process and in those it starts."""
    os.environ.update(SILENCE)
    for module, setting, value in (
        ("huggingface_hub.constants", "HF_HUB_DISABLE_TELEMETRY", True),
        ("datasets.config", "HF_UPDATE_DOWNLOAD_COUNTS", False),
    ):
        if module in sys.modules:
            setattr(sys.modules[module], setting, value)


@contextmanager
def offline(wanted: bool = True) -> Iterator[None]:
    """Inside, the hub's libraries fetch nothing, whether they are imported already or yet to be.

    >>> with offline():
    ...     import huggingface_hub
    ...     huggingface_hub.is_offline_mode()
    True
    """
    if not wanted:
        yield
        return
    before = os.environ.get(OFFLINE)
    settings = _offline_settings()
    os.environ[OFFLINE] = "1"
    for module in settings:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        os.environ.pop(OFFLINE)
        if before is not None:
            os.environ[OFFLINE] = before
        for module in _offline_settings():
            # One that was imported inside read our variable; outside it would have read the one before.
            module.HF_HUB_OFFLINE = settings.get(module, (before or "").upper() in ("1", "ON", "YES", "TRUE"))


def _offline_settings() -> dict[Any, bool]:
    modules = [sys.modules.get(name) for name in ("huggingface_hub.constants", "datasets.config")]
    return {module: module.HF_HUB_OFFLINE for module in modules if module is not None}


def hub_answers() -> bool:
    """Whether the hub, or the proxy on the way to it, takes a connection at all.

    Asked before the first file of a model: the hub's library tries again and again for minutes where there is no
    network.
    """
    import socket
    import urllib.request
    from urllib.parse import urlsplit

    import huggingface_hub.constants as constants

    hub = urlsplit(constants.ENDPOINT)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    passed = urllib.request.proxy_bypass(hub.hostname or "")
    way = hub if proxy is None or passed else urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = way.port or (80 if way.scheme == "http" else 443)
    try:
        socket.create_connection((way.hostname or "", port), timeout=PATIENCE).close()
    except (OSError, UnicodeError):
        return False
    return True


def plain_requests() -> None:
    """The hub's requests say who asks and nothing more: no versions, no session, no counter."""
    import huggingface_hub

    client = huggingface_hub.get_session()
    hooks = client.event_hooks
    if _plain not in hooks["request"]:
        client.event_hooks = {**hooks, "request": [*hooks["request"], _plain]}


def _plain(request: Any) -> None:
    request.headers["user-agent"] = AGENT
    request.headers.pop("x-hf-download-counter", None)
