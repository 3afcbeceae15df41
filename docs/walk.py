"""Walks through first-day.md and writes what its commands print into it: python -m docs.walk FOLDER.

A block of `sh` is run, in the page's order, in a folder that is new; what it prints goes into a block of `text` after
it. Blocks of `bash` are for the reader alone. A walk that was stopped goes on after the last block that ended.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "first-day.md"
STEP = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)
WIDTH = 100


def steps() -> list[str]:
    """The commands of each block."""
    return [found["commands"] for found in STEP.finditer(PAGE.read_text(encoding="utf-8"))]


def walk(folder: Path, scripts: Path, skip: int = 0) -> Iterator[str]:
    """Run the blocks (but the first ``skip``) with the tools of an environment, and say what each prints."""
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
    }
    for commands in steps()[skip:]:
        done = subprocess.run(
            ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{commands}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        yield done.stdout.replace(f"{folder}/", "").replace(str(folder), ".")


def main(folder: Path) -> None:
    kept = folder / "printed"
    kept.mkdir(parents=True, exist_ok=True)
    known = [path.read_text(encoding="utf-8") for path in sorted(kept.iterdir())]
    place = folder / "first-day"
    place.mkdir(exist_ok=True)
    for said in walk(place.resolve(), Path(sys.executable).parent, skip=len(known)):
        (kept / f"{len(known):02}.txt").write_text(said, encoding="utf-8")
        known.append(said)
        print(said)
    printed = iter(known)

    def fill(found: re.Match[str]) -> str:
        said = "\n".join(line.rstrip() for line in next(printed).strip("\n").splitlines())
        return f"```sh\n{found['commands']}```\n" + (f"\n```text\n{said}\n```\n" if said else "")

    PAGE.write_text(STEP.sub(fill, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
