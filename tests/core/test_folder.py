"""Files of a folder: read with the room that they need, and no more."""

import tracemalloc
from pathlib import Path

from dualscope.core.folder import Folder


def test_a_small_file_takes_little_room(tmp_path: Path) -> None:
    """Room was once made for the largest file that is ever read, and under a limit of memory there was none."""
    folder = Folder(tmp_path)
    folder.write("a", b"x" * 1000)
    tracemalloc.start()
    try:
        assert folder.read("a") == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
