"""A hub of our own on this machine: it serves one model, and writes down every request it gets."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Endpoint:
    """``requests`` is all that came in; ``files`` are served as those of ``owner/tiny`` at its only commit."""

    files: dict[str, bytes]
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        head, _, name = path.partition("/resolve/")
        _, _, name = name.partition("/")
        if head != "/owner/tiny":
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"{}"
        content = self.files[name]
        etag = hashlib.sha256(content).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "none"}, content


@contextmanager
def serving(folder: Path) -> Iterator[Endpoint]:
    """The endpoint with a folder's files, while the block runs."""
    endpoint = Endpoint({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            endpoint.requests.append(Request(self.command, self.path, headers))
            self.rfile.read(int(headers.get("content-length", 0)))
            status, extra, content = endpoint.answer(self.path)
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = _do

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
