"""Build the wheel and the sdist, and try each in an environment of its own, with the versions that are named.

    python .ci/fresh_install.py                                          # whatever pip takes by itself: the newest
    python .ci/fresh_install.py "torch==2.11.*" "transformers==5.17.*"   # the oldest that are supported

It needs `build`, and minutes: every environment gets a torch of its own. `twine` checks the metadata where it is there.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIED = (
    ["--version"],
    ["theory", "--only", "icl-dual"],
    [
        *("run", "--task", "embedded-sst2", "--variant", "trained", "--learner", "gd", "--seeds", "1"),
        *("--shots", "8", "--queries", "8", "--offline", "--jobs", "1", "--out", "run"),
    ],
)
PACKAGES = (
    "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('torch', 'transformers', 'datasets')))"
)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def call(command: list[str], folder: Path) -> None:
    tell(f"$ {' '.join(command)}")
    subprocess.run(command, cwd=folder, check=True)


def main(versions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        call([sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(ROOT)], place)
        files = sorted((place / "dist").iterdir())
        if twine := shutil.which("twine"):
            call([twine, "check", "--strict", *map(str, files)], place)
        for number, file in enumerate(files):
            home, empty = place / f"environment-{number}", place / f"empty-{number}"
            empty.mkdir()
            venv.create(home, with_pip=True)
            scripts = home / "bin"
            call([str(scripts / "python"), "-m", "pip", "install", "--quiet", str(file), *versions], empty)
            call([str(scripts / "python"), "-c", PACKAGES], empty)
            for arguments in TRIED:
                call([str(scripts / "dualscope"), *arguments], empty)
            if not (empty / "run" / "report.html").stat().st_size:
                sys.exit(f"{file.name}: the report is empty")
            tell(f"{file.name} works in an environment of its own")


if __name__ == "__main__":
    main(sys.argv[1:])
