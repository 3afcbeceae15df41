"""Files that others may read."""

import os
from pathlib import Path


def share(file: Path) -> None:
    """The permissions of any new file: safetensors makes its files for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)
