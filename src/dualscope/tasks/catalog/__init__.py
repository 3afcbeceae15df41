"""The tasks that we ship, one YAML file each."""

from pathlib import Path


def catalog_names() -> list[str]:
    """The names of the tasks that we ship.

    >>> "sst2" in catalog_names()
    True
    """
    return sorted(path.stem for path in catalog_folder().glob("*.yaml"))


def catalog_folder() -> Path:
    """Where the files are, also in an installed package."""
    return Path(__file__).parent
