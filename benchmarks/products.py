"""A linear layer in float32 on a CPU: torch's own product against oneDNN's, and GELU as torch has it against ours.

python -m benchmarks.products [--threads 1]

Milliseconds of processor time, the least of many, both in turn. What is faster depends on the processor: on Intel's MKL
is as fast as oneDNN, on AMD's it is not.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.timing import machine, show
from dualscope.models.capture.hooks import gelu_tanh
from dualscope.models.capture.onednn_linear import is_available, product

# Rows, in, out: one sequence and a batch of queries of the embedded model, SmolLM2's 135 million, and of 1.3 billion.
SHAPES = [(12, 192, 768), (460, 192, 768), (650, 768, 192), (40, 576, 1536), (600, 576, 1536), (600, 2048, 8192)]


def least(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(machine(torch.device("cpu")))
    if not is_available():
        raise SystemExit("this build of torch has no oneDNN product: dualscope uses torch's own")
    rows = []
    for count, width, out in SHAPES:
        x, weight, bias = torch.randn(count, width), torch.randn(out, width), torch.randn(out)
        repeats = 10 if count * width * out > 1e9 else 100
        times = [least(partial(work, x, weight, bias), repeats) for work in (F.linear, product)]
        rows.append((f"{count} x {width} to {out}", *times, times[0] / times[1]))
    for count, width in ((460, 768), (650, 768)):
        x = torch.randn(count, width)
        times = [least(partial(F.gelu, x, approximate="tanh"), 100), least(partial(gelu_tanh, x), 100)]
        rows.append((f"GELU of {count} x {width}", *times, times[0] / times[1]))
    show("milliseconds", ["product", "torch", "here", "ratio"], rows)


if __name__ == "__main__":
    main()
