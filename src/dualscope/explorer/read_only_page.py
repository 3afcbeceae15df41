"""One screen as a page of its own: everything is in one file, it shows the answers, and asks no server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from dualscope._version import __version__
from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import text_of
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.jobs import Watch
from dualscope.explorer.offer import first_state, start_of
from dualscope.explorer.state import State
from dualscope.report.page import TEMPLATES, check_page, put, to_json

PAGE = Path(__file__).parent / "page"
IMPORT = re.compile(r'from "\./(\w+)\.js"')


def write_read_only_page(explorer: Explorer, target: Path, saved: Path | None = None) -> Path:
    """Compute a screen, the first one or a saved one, and write its page."""
    check_page(target, "--share")
    state = State.model_validate(first_state(explorer.offer)) if saved is None else saved_state(saved)
    return put(target, read_only_page(explorer, state, Watch(lambda _: None)), f"--share {target}")


def saved_state(file: Path) -> State:
    """What `Save` wrote."""
    try:
        text = text_of(file)
    except InputError as error:
        raise InputError(f"--state {error}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"--state {file}: not JSON; give a file that the explorer's Save wrote") from None
    if not isinstance(content, dict):
        raise InputError(f"--state {file}: not a state of the explorer; give a file that its Save wrote")
    found: State = validated(State, content, f"--state {file}")
    return found


def read_only_page(explorer: Explorer, state: State, watch: Watch) -> str:
    """The page's text. Its answers are computed here, by the same functions as on the page that is served."""
    recorded: dict[str, list[dict[str, Any]]] = {"/api/compute": [], "/api/words": []}

    def recording(path: str) -> Watch:
        def tell(event: dict[str, Any]) -> None:
            watch.check()
            if event["event"] == "progress":
                watch.tell(event)
            else:
                recorded[path].append(event)

        return Watch(tell)

    explorer.compute(state, recording("/api/compute"))
    if state.view.layer is not None and state.view.head is not None:
        explorer.words(state, recording("/api/words"))
    name = re.split(r"[\\/]", state.model.rstrip("\\/"))[-1]  # readers must not see this machine's folders
    start = start_of(explorer.offer) | {
        "models": [name],
        "state": state.model_dump(mode="json") | {"model": name},
        "recorded": recorded,
    }
    return rendered(to_json(start), inline=True)


def rendered(start: str, inline: bool) -> str:
    """The explorer's page; ``inline`` with all that it needs inside."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
    parts: dict[str, Any] = _inlined(start) if inline else {}
    safe = {name: Markup(text) for name, text in parts.items()}  # our own style and scripts
    # The start is escaped for a script element by to_json.
    return environment.get_template("index.html.j2").render(
        start=Markup(start), version=__version__, inline=safe, readonly=inline
    )


def _inlined(start: str) -> dict[str, str]:
    """Style and scripts. Modules are named by an import map, since a page from disk cannot fetch files beside it."""
    from plotly.offline import get_plotlyjs

    modules = {}
    for path in sorted(PAGE.glob("*.js")):
        text = IMPORT.sub(r'from "\1"', path.read_text(encoding="utf-8"))
        modules[path.stem] = f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
    return {
        "style": (TEMPLATES / "style.css").read_text(encoding="utf-8") + (PAGE / "explorer.css").read_text("utf-8"),
        "plotly": get_plotlyjs(),
        "plots": (TEMPLATES / "plots.js").read_text(encoding="utf-8"),
        "imports": to_json({"imports": modules}),
        # No text of a visitor's can hold the hash of the page that it is in.
        "nonce": hashlib.sha256(start.encode()).hexdigest()[:32],
    }
