"""dualscope explore: the local page for one's own demonstrations."""

from pathlib import Path

import typer

from dualscope.commands.shared_options import MANY, OFFLINE
from dualscope.core.errors import InputError

LOOPBACK = "127.0.0.1"


def explore(
    model: list[str] = typer.Option(
        ["embedded"], "--model", "-m", help=f"embedded, a folder, a GGUF file, or a hub name. {MANY}"
    ),
    task: list[str] = typer.Option(
        [], "--task", "-t", help=f"Tasks to load demonstrations from: a name, or a YAML file. {MANY}"
    ),
    data: Path | None = typer.Option(None, help="Read catalog tasks from DIR/<task>/<split>.jsonl, not the hub."),
    port: int | None = typer.Option(None, min=1, max=65535, help="The port; a free one from 8765 on if not given."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address, and open nothing."),
    plugin: list[Path] = typer.Option([], "--plugin", help=f"A Python file with your learners and metrics. {MANY}"),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:1, mps."),
    offline: bool = OFFLINE,
    share: Path | None = typer.Option(
        None, help="Write one screen as a page to hand on, which needs no server, and open nothing."
    ),
    state: Path | None = typer.Option(None, help="With --share: a screen that the page's Save wrote; else the first."),
    host: str = typer.Option(LOOPBACK, help="The address to listen on; any but this machine's own is unsafe."),
    unsafe_host: bool = typer.Option(
        False,
        "--unsafe-host",
        help="Let other machines in: whoever has the link can compute here, and the network can read it.",
    ),
) -> None:
    """Open a local page: type demonstrations, and watch in-context learning and gradient descent learn from them.

    dualscope explore

    dualscope explore --model path/to/model --task sst2 --data path/to/data

    dualscope explore --share screen.html --state dualscope-explorer.json
    """
    try:
        from dualscope.explorer.server import listening, serve
    except ModuleNotFoundError as error:
        raise InputError(f"the explorer needs the package '{error.name}': pip install 'dualscope[explore]'") from None
    from dualscope.explorer.offer import Offer

    if host not in (LOOPBACK, "localhost") and not unsafe_host:
        raise InputError(
            f"--host {host}: the page would be open to other machines, without encryption: whoever has the link can "
            f"use this one. If you want that, say --unsafe-host as well; if not, leave --host out"
        )
    if not host.strip():
        raise InputError(f"--host: an empty address; leave it out for this machine alone ({LOOPBACK})")
    if state is not None and share is None:
        raise InputError(f"--state {state}: goes with --share; on a page that is served, press Open")
    offer = Offer.of(model, task, data, [str(file) for file in plugin], device, offline)
    if share is not None:
        from dualscope.explorer.explorer import Explorer
        from dualscope.explorer.read_only_page import write_read_only_page

        typer.echo(f"page:      {write_read_only_page(Explorer(offer), share, state)}")
        return
    with listening(LOOPBACK if host == "localhost" else host, port) as place:
        if unsafe_host and not place.is_loopback:
            typer.echo(f"unsafe:    other machines can reach {place.host}, and whoever has the link can use this one")
        serve(offer, place, open_browser=not no_browser, say=typer.echo)
