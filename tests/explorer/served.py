"""A running explorer, and requests to it as a browser, or an attacker, would make them."""

import http.client
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dualscope.explorer.explorer import Explorer

TEXTS = ["the film was a triumph.", "they met the blunder again.", "we saw the marvel in the place."]


def state(**more: Any) -> dict[str, Any]:
    """Three demonstrations and a query in words that the embedded model knows."""
    found: dict[str, Any] = {
        "version": 1,
        "model": "embedded",
        "template": "Sentence: {text} Label:",
        "labels": ["Negative", "Positive"],
        "separator": None,
        "demonstrations": [
            {"fields": {"text": text}, "label": label} for text, label in zip(TEXTS, (1, 0, 1), strict=True)
        ],
        "queries": [{"fields": {"text": "he showed the cliche by the house."}, "label": 0}],
        "task": None,
        "learners": ["gd", "lcgd"],
        "focus": "gd",
        "rate": 1.0,
        "steps": None,
        "seed": 0,
        "view": {"query": 0, "layer": None, "head": None},
    }
    return found | more


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]

    def learned(self) -> dict[str, dict[str, Any]]:
        """What each learner answered, controls left out."""
        found = [event for event in self.events if event["event"] == "learned" and not event.get("control")]
        return {event["learner"]: event for event in found}


def refused(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert b"Traceback" not in answer.body
    assert b'"learned"' not in answer.body


@dataclass
class Served:
    """Where the explorer runs. ``ask`` is a proper request of its page, unless told otherwise."""

    address: str
    explorer: Explorer
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.origin = f"http://{self.host}:{self.port}"
        self.token = parse_qs(parts.query)["token"][0]

    def ask(
        self, path: str, content: Any = None, method: str = "POST", body: bytes | None = None, **headers: str | None
    ) -> Answer:
        given = {
            "Host": f"{self.host}:{self.port}",
            "Origin": self.origin,
            "Content-Type": "application/json",
            "X-Dualscope-Token": self.token,
            "Sec-Fetch-Site": "same-origin",
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[misc]
        sent = body if body is not None else json.dumps(content).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**given, "Content-Length": str(len(sent))}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            with suppress(BrokenPipeError, ConnectionResetError):  # it has answered already, and reads no more
                connection.send(sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def compute(self, page: str = "test", **more: Any) -> Answer:
        return self.ask("/api/compute", {"page": page, "state": state(**more)})

    def lives(self) -> bool:
        """Whether it still computes."""
        return "gd" in self.compute(page="pulse", learners=["gd"]).learned()
