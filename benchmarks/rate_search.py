"""The search for a learning rate: how long it takes, that it goes on where it was killed, and what the whole grid says.

python -m benchmarks.rate_search --model MODEL --data DIR [--task sst5] [--labels "very bad,rather bad,..."] [--grid]

The search is a run's own (11 rates, 2 seeds, up to 200 spare examples); killed half-way, it is begun again. With --grid
every rate is also tried on every example, as a search without halving would.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.timing import show
from dualscope.choosing.halving import GRID, RATES
from dualscope.learners.gradient.gd import Gd

TWO_TOKENS = "very negative,rather negative,quite neutral,rather positive,very positive"


def task_file(folder: Path, data: Path, task: str, labels: str) -> Path:
    """The data of a catalog task with label words of our own."""
    files = {split: str((data / task / f"{split}.jsonl").resolve()) for split in ("train", "test")}
    fields = {
        "name": f"{task}-own-labels",
        "source": {"files": files},
        "splits": {"train": "train", "evaluation": "test"},
        "template": "Review: {text} Sentiment:",
        "labels": labels.split(","),
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(fields))
    return folder / "task.yaml"


class Search:
    """A run whose rates are chosen; its cells are few."""

    def __init__(self, model: str, task: str, out: Path) -> None:
        self.out = out
        asked = ("--model", model, "--task", task, "--lr", "auto", "--seeds", "2", "--learner", "gd")
        small = ("--variant", "trained", "--queries", "40", "--no-report", "--out", str(out))
        self.command = [sys.executable, "-m", "dualscope", "run", *asked, *small]

    @property
    def pieces(self) -> dict[str, int]:
        """What is stored, and when it was."""
        return {file.name: file.stat().st_mtime_ns for file in (self.out / "choice-pieces").glob("*.json")}

    @property
    def choice(self) -> dict[str, Any] | None:
        found = list((self.out / "choices").glob("*.json"))
        return json.loads(found[0].read_text()) if found else None

    def go(self, until: int | None = None) -> tuple[float, float]:
        """Seconds until it is killed (with so many pieces) or has chosen; and until it first said anything."""
        begin = time.perf_counter()
        heard: list[float] = []
        process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )

        def listen() -> None:
            for _ in process.stderr or ():
                heard.append(time.perf_counter() - begin)

        threading.Thread(target=listen, daemon=True).start()
        seconds = 0.0
        while process.poll() is None:
            time.sleep(0.1)
            if until is not None and len(self.pieces) >= until:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return time.perf_counter() - begin, heard[0]
            if not seconds and self.choice is not None:
                seconds = time.perf_counter() - begin
        if process.returncode:
            raise SystemExit(f"the run failed: {' '.join(self.command)}")
        return seconds, heard[0]


def whole_grid(model: str, task: str) -> float:
    """The rate that a search without halving chooses."""
    from dualscope import Model, Task, choose_settings

    every = replace(RATES, fewest=len(GRID))
    Gd.rounds = lambda *_: every
    loaded = Model.load(model, dtype="auto")
    return float(choose_settings(loaded, Task.load(task), "gd", seeds=[0, 1], queries=40).settings["lr"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", default="sst5")
    parser.add_argument("--data", type=Path, help="a folder with TASK/train.jsonl and TASK/test.jsonl")
    parser.add_argument("--labels", default=TWO_TOKENS)
    parser.add_argument("--kill-at", type=int, default=4, help="pieces; 8 are the most")
    parser.add_argument("--grid", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = str(task_file(Path(folder), args.data, args.task, args.labels)) if args.data else args.task
        search = Search(args.model, task, Path(folder) / "run")
        first, heard = search.go(args.kill_at)
        kept = search.pieces
        second, _ = search.go()
        assert search.choice is not None
        rows: list[tuple[str, object]] = [
            ("seconds until the first line", heard),
            ("seconds until it was killed", first),
            ("pieces it had stored", len(kept)),
            ("of them computed again", sum(search.pieces[name] != when for name, when in kept.items())),
            ("seconds from there to the choice", second),
            ("seconds of the search in all", first + second),
            ("the rate", search.choice["settings"]["lr"]),
        ]
        if args.grid:
            rows.append(("the whole grid's rate", whole_grid(args.model, task)))
        show(f"{args.model}, {args.task}", ["", ""], rows)


if __name__ == "__main__":
    main()
