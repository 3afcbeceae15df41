"""Several processes that compute on one NVIDIA GPU at once, and not in turns.

By itself a GPU computes for one process at a time, a few milliseconds each, and the small kernels of a small model
leave most of it idle in every turn. NVIDIA's multi-process service lets them run side by side; what is computed stays
the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dualscope.core.environment import environment

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")  # where a service listens that was started without a place of its own
PATIENCE = 20.0  # seconds, for a service to begin or to end

# Its own process, which ends the service when its input does: also when the one that asked for it is killed.
KEEPER = """
import subprocess, sys
control, patience = sys.argv[1], float(sys.argv[2])
# Output goes nowhere: a daemon would keep a pipe open, and be waited for.
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": patience}
begun = subprocess.run([control, "-d"], stdin=subprocess.DEVNULL, **quiet).returncode == 0
print("begun" if begun else "refused", flush=True)
sys.stdin.read()
subprocess.run([control], input=b"quit\\n", **quiet)
"""
# The driver's own library, because importing torch to try it would take longer than what is tried.
TRIAL = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
device, context, room = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(room), ctypes.c_size_t(1024)) == 0
assert driver.cuMemsetD8_v2(room, ctypes.c_ubyte(1), ctypes.c_size_t(1024)) == 0
assert driver.cuCtxSynchronize() == 0
"""


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Inside, processes that are started share a GPU through a service of their own, which ends with this one.

    Gives whether they do. A service that was started elsewhere is used as it is.
    """
    if PIPES in os.environ or (USUAL / "control").exists():
        yield True
        return
    if shutil.which(CONTROL) is None:
        yield False
        return
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="dualscope-", ignore_cleanup_errors=True))
        stack.enter_context(environment({PIPES: folder, LOGS: folder}))
        works = stack.enter_context(_service())
        if not works:
            stack.enter_context(environment({PIPES: None, LOGS: None}))
        yield works


@contextmanager
def _service() -> Iterator[bool]:
    """A service for the places in the environment; gives whether a process could compute through it."""
    # Of the GPUs that are visible to it a service makes a numbering of its own: it sees all, its clients choose.
    everything = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, CONTROL, str(PATIENCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=everything,
        start_new_session=True,  # Ctrl-C is for the workers: they still need it to end what they are at
    )
    try:
        assert keeper.stdout is not None
        yield keeper.stdout.readline() == b"begun\n" and _is_usable()
    finally:
        keeper.communicate()  # its input ends, and then it does


def _is_usable() -> bool:
    try:
        command = [sys.executable, "-c", TRIAL]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0
    except subprocess.TimeoutExpired:
        return False
