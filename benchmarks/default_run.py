"""The whole default run of version 0.1, 324 cells with its controls and the report, from the command line.

python -m benchmarks.default_run [--dtype float32 auto]

Wall time and the processor time of all processes; a quiet machine's wall time is about the latter over its cores.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import show

STUDY = Path(__file__).parent / "studies" / "default-0.1.yaml"


def run(dtype: str) -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dualscope.cli", "run", str(STUDY), "--out", folder, "--dtype", dtype]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "auto"])
    args = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)  # the run chooses its own threads
    rows = [(dtype, *run(dtype)) for dtype in args.dtype]
    show("version 0.1's default run, seconds", ["dtype", "wall", "processor"], rows)


if __name__ == "__main__":
    main()
