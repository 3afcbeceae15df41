"""The order of metrics, and so of rows, is the catalog's, whatever was imported first."""

import subprocess
import sys

from dualscope.metrics.catalog import FAMILIES

NAMES = "from dualscope.metrics.catalog import METRICS; print(' '.join(METRICS))"


def names(first: str = "") -> list[str]:
    done = subprocess.run([sys.executable, "-c", first + NAMES], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_imports_do_not_tell() -> None:
    assert names(f"import dualscope.metrics.{FAMILIES[-1]}; ") == names()
