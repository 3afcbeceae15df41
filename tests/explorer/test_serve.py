"""The explorer as it is started: its token is on nobody's command line."""

import os
import stat
import threading
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from dualscope.explorer import serve
from dualscope.explorer.explorer import Explorer


def test_the_browser_is_not_given_the_token(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a page that its owner alone can read, and that leads to the address."""
    opened: list[str] = []
    said: list[str] = []
    looked = threading.Event()
    seen: dict[str, int | str] = {}

    def open_(address: str) -> bool:
        opened.append(address)
        page = Path(unquote(urlsplit(address).path))
        seen.update(mode=stat.S_IMODE(os.stat(page).st_mode), folder=stat.S_IMODE(os.stat(page.parent).st_mode))
        seen["text"] = page.read_text(encoding="utf-8")
        looked.set()
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    started: list[object] = []
    real = serve.prepared

    def prepared(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        started.append(found[0])
        return found

    monkeypatch.setattr(serve, "prepared", prepared)
    with serve.listening("127.0.0.1", None) as place:
        thread = threading.Thread(target=serve.serve, args=(explorer.offer, place, True, said.append), daemon=True)
        thread.start()
        assert looked.wait(60)
        started[0].should_exit = True  # type: ignore[attr-defined]
        thread.join(20)
    assert not thread.is_alive()
    address = next(line.split()[-1] for line in said if line.startswith("explorer:"))
    token = address.partition("token=")[2]
    assert token
    assert opened[0].startswith("file://")
    assert token not in opened[0]
    assert (seen["mode"], seen["folder"]) == (0o600, 0o700)
    assert address in str(seen["text"])
    assert not Path(unquote(urlsplit(opened[0]).path)).exists()  # gone with the server
