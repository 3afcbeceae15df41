"""Starting and stopping the server: a socket, a token, the first model, a browser."""

from __future__ import annotations

import errno
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

import uvicorn

from dualscope.core.errors import InputError
from dualscope.explorer.connections import Impatient
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.guard import LOOPBACK, GuardRules
from dualscope.explorer.offer import Offer
from dualscope.explorer.server import application

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
    model = explorer.model(offer.models[0])  # before anybody waits for it
    say(f"model:     {model.name}, {model.n_layers} layers, on {model.device} ({time.perf_counter() - began:.1f} s)")
    server, address = prepared(explorer, place)
    say(f"explorer:  {address}")
    say("stop with Ctrl-C")
    with redirection(address) as door:
        if open_browser:
            threading.Thread(target=_open, args=(server, door), daemon=True).start()
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
            http=Impatient,
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
    everybody on the machine can read what a program was started with, and the address has the token in it.
    """
    with tempfile.TemporaryDirectory(prefix="dualscope-") as folder:
        page = Path(folder) / "explorer.html"
        page.touch(mode=0o600)
        leads = f'<meta http-equiv="refresh" content="0; url={escape(address)}">'
        page.write_text(f"<!doctype html><title>dualscope</title>{leads}\n", encoding="utf-8")
        yield page


def _open(server: uvicorn.Server, door: Path) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.02)
    webbrowser.open(door.as_uri())


def _address_outside() -> str:
    """The address that this machine has in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A documentation address: a datagram socket only looks up the way.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK[0]
