"""How many worker processes suit a study on this machine, and how many threads each. No torch until one computes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dualscope.models.loading.automatic_precision import on_cpu
from dualscope.studies.execute.cost import shape_of

SMALL = 50_000_000  # parameters: below this, two threads of one process are slower than two processes
MOST = 8
SHARE = 0.25  # of the machine's memory, for all copies of the weights together
CORES_ON_GPU = 2  # for each process: one launches kernels, one writes and reads files
# What must be free on a GPU for each process: for libraries, traces and graphs; for weights, changes and gradients.
BYTES_ON_GPU, BYTES_A_PARAMETER = 8 * 2**30, 12
CONTEXT_ON_GPU = 2**30  # what CUDA's libraries take in every process
MARGIN = 1.2  # how far estimates may be off


def suitable_jobs(models: Sequence[str], device: str = "auto") -> int:
    """A process a core for small models on a CPU; one for a large model.

    A GPU is idle while Python launches the next kernel, draws untrained weights or writes: several processes share it,
    as many as the cores and the memory that is free allow.
    """
    shapes = [shape_of(model) for model in models]
    if any(shape is None for shape in shapes):
        return 1
    largest = max((shape.parameters for shape in shapes if shape), default=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    copies = int(SHARE * memory / max(1, 4 * largest))
    if not on_cpu(device):
        free = free_on_gpu(device) // (BYTES_ON_GPU + BYTES_A_PARAMETER * largest)
        return max(1, min(cores() // CORES_ON_GPU, MOST, copies, free))
    return 1 if largest > SMALL else max(1, min(cores(), MOST, copies))


def fitting_jobs(jobs: int, need: int, device: str) -> int:
    """Of so many processes as many as a GPU's free memory holds, where each needs so many bytes by the estimate."""
    return max(1, min(jobs, free_on_gpu(device) // int(MARGIN * need + CONTEXT_ON_GPU)))


def free_on_gpu(device: str) -> int:
    """Bytes that are free on an NVIDIA GPU (`auto`, `cuda`, `cuda:1`), by its driver's tool; else 0."""
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cuda") or shutil.which("nvidia-smi") is None:
        return 0
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpu = str(int(number or 0)) if visible is None else visible.split(",")[int(number or 0)]
        command = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return int(asked.stdout) * 2**20
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return 0


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def suitable_threads(jobs: int, before: int | None = None, on_gpu: bool = False) -> int:
    """Threads of each of so many workers: of the machine and the study, never of what is left to do.

    On a GPU one core of each is left to what launches its kernels: threads that wait for work would be in its way.

    Sums round otherwise with other threads, and an unstable descent shows it. So a run that is resumed has the threads
    that it had ``before``, whatever the jobs are now, on a machine that can run them.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    natural = int(asked) if asked.isdecimal() and int(asked) else max(1, cores() // jobs - on_gpu)
    return natural if before is None else min(before, max(natural, cores()))


@contextmanager
def computing_with(threads: int | None) -> Iterator[None]:
    """Inside, torch computes with so many threads; as it was where None."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
