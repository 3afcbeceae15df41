"""One episode of large models on one device: seconds, floating-point operations and memory, beside the estimate.

    python -m benchmarks.scale                                              two small shapes on the CPU
    python -m benchmarks.scale --device cuda --shapes 33b 13b 7b 1.3b 350m --precision bfloat16 --queries 512

Llama shapes with random weights; 32 demonstrations and queries of mr's lengths; zero-shot, in-context, gd and lcgd with
every default metric, the second reading for the signal to noise among them.
"""

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import lessons
from benchmarks.timing import machine, save, show, wait
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench
from dualscope.learners.bench import KEPT
from dualscope.metrics import METRICS
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.models.loading.device_and_precision import dtype_of, total_memory
from dualscope.models.reading.footprint import FULL, TRAINED_TWICE, Demand, Footprint, Shape, footprint
from dualscope.models.reading.memory import weight_bytes
from dualscope.tasks.lesson import Lesson

VOCABULARY, POSITIONS, RATE = 32_000, 4096, 0.003
SHAPES = {  # layers, width, heads, key and value heads, inner width
    "33b": (60, 6656, 52, 52, 17_920),
    "13b": (40, 5120, 40, 40, 13_824),
    "7b": (32, 4096, 32, 8, 14_336),
    "1.3b": (24, 2048, 16, 16, 5504),
    "350m": (24, 1024, 16, 16, 2816),
    "tiny": (4, 128, 4, 2, 352),
    "small": (6, 256, 4, 4, 704),
}


def llama(shape: str, precision: str, device: str) -> Model:
    """Built where it will live: 33 billion weights are not drawn on the CPU first."""
    layers, width, heads, kv_heads, inner = SHAPES[shape]
    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=inner, vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        hf = LlamaForCausalLM._from_config(config, dtype=dtype_of(precision)).eval()
    tokenizer = SimpleNamespace(model_max_length=POSITIONS)
    return Model(hf, tokenizer, f"random {shape}", precision=precision, digest=shape)


class Stages:
    """Seconds of each stage, and the most memory that the device held in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: list[list[Any]] = []

    def run(self, name: str, work: Callable[[], Any], flops: float = 0.0) -> Any:
        counted = self.device.type == "cuda"
        if counted:
            torch.cuda.reset_peak_memory_stats(self.device)
        wait(self.device)
        start = time.perf_counter()
        result = work()
        wait(self.device)
        taken = time.perf_counter() - start
        peaks = (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved, torch.cuda.memory_allocated)
        memory = [read(self.device) / 2**30 if counted else 0.0 for read in peaks]
        self.rows.append([name, taken, flops / 1e12, flops / 1e12 / taken, *memory])
        return result

    @property
    def peak(self) -> float:
        return max(row[4] for row in self.rows)


def episode(model: Model, lesson: Lesson) -> Stages:
    stages = Stages(model.device)
    forward = 2.0 * sum(p.numel() for n, p in model.hf.named_parameters() if "embed_tokens" not in n)
    asked = forward * sum(len(query) + 1 for query in lesson.queries)
    context = forward * len(lesson.context)
    taught = sum(len(d.prompt) + len(d.label) + 1 for d in lesson.training)
    # Backward through frozen weights costs what forward does; the errors of the inputs alone are needed.
    training = {"gd": 2 * forward * taught, "lcgd": forward * taught}
    want = frozenset().union(*(METRICS[name].wants for name in METRICS if METRICS[name].default))
    bench = Bench(model, lesson, want=want)
    stages.run("zero-shot", lambda: bench.zero_shot, asked)
    stages.run("in-context", lambda: bench.in_context, asked + context)
    for name in ("gd", "lcgd"):
        learning = LearnerSpec(name, lr=RATE)
        work = asked + training[name]
        # What is said of it, and not the change itself: that may have to leave the device.
        notes = stages.run(name, lambda learning=learning: bench.result(learning), work).learned.notes
        # Some queries once more, in another order of summation, for the signal to noise, and where the model is small
        # the training too; then every default metric.
        stages.run(f"{name}, again and metrics", lambda learning=learning: measure_cell(bench, learning), work)
        for note in notes:
            print(f"{name}: {note}")
    return stages


def estimated(model: Model, lesson: Lesson) -> Footprint:
    shape = Shape.of(model.hf.config.to_dict(), weight_bytes(model.hf) // model.dtype.itemsize)
    # gd's change is kept while lcgd learns, unless it fills much of the device; a small model is trained once more.
    kept = FULL * shape.learned <= KEPT * total_memory(model.device)
    task = Demand(
        queries=len(lesson.queries),
        query_tokens=max(map(len, lesson.queries)) + len(lesson.bos),
        context_tokens=len(lesson.context),
        demonstration_tokens=max(len(d.prompt) + len(d.label) + 1 for d in lesson.training),
        traces=4,
        changes=1 + kept + (shape.parameters <= TRAINED_TWICE),
        device="cuda" if model.device.type == "cuda" else "cpu",
    )
    return footprint(shape, model.dtype.itemsize, task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "small"])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(torch.device(args.device))}
    summary = []
    for shape in args.shapes:
        start = time.perf_counter()
        model = llama(shape, args.precision, args.device)
        wait(model.device)
        built = time.perf_counter() - start
        lesson = lessons.real_lengths("mr", 32, args.queries, VOCABULARY)
        parts = estimated(model, lesson)
        stages = episode(model, lesson)
        whole = sum(row[1] for row in stages.rows)
        show(
            f"{shape}, {args.precision}, {args.queries} queries (built in {built:.0f} s)",
            ["stage", "s", "TFLOP", "TFLOP/s", "peak GiB", "reserved", "after"],
            stages.rows,
        )
        print("estimate, GiB: " + ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.parts.items()), flush=True)
        estimate = parts.total / 2**30
        summary.append([shape, whole, stages.peak, estimate, estimate / stages.peak if stages.peak else float("nan")])
        results[shape] = {"stages": stages.rows, "seconds": whole, "peak": stages.peak, "estimate": parts.parts}
        save(args.out, results)
        del model, stages
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    show("episodes", ["shape", "s", "peak GiB", "estimate", "estimate : peak"], summary)


if __name__ == "__main__":
    main()
