"""One bad input: a command, the files it is given, and the words that it must be answered with."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROWS = [{"text": f"text number {i}", "label": i % 2} for i in range(60)]
TASK = (
    "name: mine\nsource: {files: {train: train.jsonl, test: test.jsonl}}\nsplits: {train: train, evaluation: test}\n"
    "template: 'Text: {text} Label:'\nlabels: [bad, good]\n"
)
SMALL = ("--seeds", "1", "--shots", "2", "--queries", "4", "--learner", "gd", "--device", "cpu", "--no-report")


@dataclass
class Place:
    """Where a bad input is laid out: a good task and a good model, of which one thing is then spoilt."""

    folder: Path
    whole: Path
    """A small model's folder, to copy."""

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return path

    def task(self) -> Path:
        for split in ("train", "test"):
            self.write(f"{split}.jsonl", "\n".join(map(json.dumps, ROWS)))
        return self.write("mine.yaml", TASK)

    def model(self) -> Path:
        return Path(shutil.copytree(self.whole, self.folder / "model", dirs_exist_ok=True))


def _nothing(place: Place) -> None:
    """The command alone is bad."""


@dataclass(frozen=True)
class Bad:
    """``arguments`` may name the folder as ``{here}``; ``said`` is a pattern of the message."""

    name: str
    arguments: tuple[str, ...]
    said: str
    make: Callable[[Place], object] = field(default=_nothing)
