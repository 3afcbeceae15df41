"""Walks through first-day.md and writes what its commands print into it: python -m docs.walk.

A block of `sh` is run, in the page's order, in a folder that is empty at first; what it prints goes into a block of
`text` after it. Blocks of `bash` are for the reader alone.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "first-day.md"
STEP = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)
WIDTH = 100


def steps() -> list[str]:
    """The commands of each block."""
    return [found["commands"] for found in STEP.finditer(PAGE.read_text(encoding="utf-8"))]


def walk(folder: Path, scripts: Path) -> Iterator[str]:
    """Run the blocks one after the other, with the tools of an environment; yields what each prints."""
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
    }
    for commands in steps():
        done = subprocess.run(
            ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{commands}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        yield done.stdout.replace(f"{folder}/", "").replace(str(folder), ".")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        printed = walk(Path(folder).resolve(), Path(sys.executable).parent)

        def fill(found: re.Match[str]) -> str:
            said = "\n".join(line.rstrip() for line in next(printed).strip("\n").splitlines())
            print(f"$ {found['commands']}{said}")
            return f"```sh\n{found['commands']}```\n" + (f"\n```text\n{said}\n```\n" if said else "")

        PAGE.write_text(STEP.sub(fill, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
