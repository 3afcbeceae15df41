"""Write requirements.lock and requirements-dev.lock: the versions of this environment, with hashes of all their files.

The first file is what dualscope runs with, the second what its development needs beside that. The hashes are those of
the package index, of every platform's files, so that one lock serves all. torch is named by its version alone, in a
comment: its builds (CPU, CUDA) are different files under one version, so it is installed first and by version.
"""

import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
PROJECT, BY_VERSION = "dualscope", "torch"
ROOT = Path(__file__).resolve().parents[1]


class _Links(HTMLParser):
    """The addresses on a page of the index: a file's name, and after # its hash."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attributes if tag == "a" and name == "href" and value]


def hashes(name: str, version: Version) -> list[str]:
    """The sha256 of every file of a release."""
    links = _Links()
    with urllib.request.urlopen(f"{INDEX}/{canonicalize_name(name)}/", timeout=60) as page:
        links.feed(page.read().decode())
    found = set()
    for link in links.found:
        parts = urlsplit(link)
        file = unquote(parts.path.rpartition("/")[2])
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", parts.fragment)
        if digest and _version(file) == version:
            found.add(digest[1])
    if not found:
        sys.exit(f"{name} {version}: the index {INDEX} has no files of it")
    return sorted(found)


def _version(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def needed(requirements: list[str], extras: frozenset[str], seen: set[str]) -> set[str]:
    """All that these requirements bring with them, by canonical names."""
    for requirement in map(Requirement, requirements):
        key = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        )
        if wanted and key not in seen and key in INSTALLED:
            seen.add(key)
            needed(INSTALLED[key].requires or [], frozenset(requirement.extras), seen)
    return seen


def lines(names: Iterator[str] | list[str]) -> Iterator[str]:
    for name in names:
        version = Version(Version(INSTALLED[name].version).public)  # without +cpu and its kin
        if name == BY_VERSION:
            yield f"# {name}=={version}"
        else:
            yield " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in hashes(name, version))])


INSTALLED: dict[str, Distribution] = {canonicalize_name(d.metadata["Name"]): d for d in distributions()}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"], "pip", "setuptools"]
    running = needed(asked, frozenset(), set())
    others = INSTALLED.keys() - running - {PROJECT}
    for file, about, names in (
        ("requirements.lock", "What dualscope runs with", running),
        ("requirements-dev.lock", "What its development needs beside requirements.lock", others),
    ):
        head = f"# {about}, pinned with the hashes of all files (Python 3.11 to 3.13). `make lock` writes this file.\n"
        (ROOT / file).write_text(head + "\n".join(lines(sorted(names))) + "\n")


if __name__ == "__main__":
    main()
