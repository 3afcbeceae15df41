"""Where the time of each stage goes, kernel by kernel: for a figure that is missed, the profile that says why.

python -m benchmarks.profile                                              a small model on the CPU
python -m benchmarks.profile --shape 1.3b --device cuda --precision bfloat16 tf32
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import lessons
from benchmarks.shapes import SHAPES, VOCABULARY, random_model
from benchmarks.timing import seconds, show
from dualscope.core.spec import LearnerSpec
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.learners import Bench
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.models.capture import attention_kernel

RATE = 0.003
STAGES = ("zero-shot", "in-context", "100 queries", "gd", "lcgd", "direct", "metrics", "kernels")


def stages(model: Model, queries: int) -> dict[str, Callable[[], object]]:
    even = lessons.of_length(1300, 45, queries, VOCABULARY)
    real = lessons.real_lengths("mr", 32, queries, VOCABULARY)
    few = lessons.real_lengths("mr", 32, 100, VOCABULARY)
    one = replace(real, queries=real.queries[:1], labels=real.labels[:1], query_ids=real.query_ids[:1])
    prefix = model.prefix(even.context)
    bench = Bench(model, real)
    delta = bench.learned("gd", lr=RATE).delta
    assert delta is not None
    learning, shown = LearnerSpec("gd", lr=RATE), bench.in_context
    return {
        "zero-shot": lambda: model.read(even),
        "in-context": lambda: model.read(even, prefix),
        "100 queries": lambda: model.read(few, model.prefix(few.context)),
        "gd": lambda: Bench(model, one).learned("gd", lr=RATE),
        "lcgd": lambda: Bench(model, one).learned("lcgd", lr=RATE),
        "direct": lambda: direct_attn_out(model, real, delta),
        "metrics": lambda: (shown, measure_cell(bench, learning)),
    }


def profiled(title: str, work: Callable[[], object], device: torch.device, most: int) -> None:
    wall = seconds(work, device, repeats=2)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds, acc_events=True) as found:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if device.type == "cuda":
        rows = [e for e in found.key_averages() if e.self_device_time_total > 0 and e.cpu_time_total == 0]
        rows.sort(key=lambda event: -event.self_device_time_total)
        busy = sum(event.self_device_time_total for event in rows) / 1e6
        table = [(e.key[:90], e.count, e.self_device_time_total / 1e3) for e in rows[:most]]
    else:
        events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
        busy = sum(event.self_cpu_time_total for event in events) / 1e6
        table = [(e.key[:90], e.count, e.self_cpu_time_total / 1e3) for e in events[:most]]
    count = sum(row[1] for row in table)
    show(f"{title}: {wall:.4f} s, {busy:.4f} s in {count}+ kernels", ["kernel", "calls", "ms"], table)


def attention_kernels(device: torch.device, precision: str) -> None:
    """Ways to attend to a shared context at the shape of the papers' model: 512 queries of 45 tokens, 1,300 keys."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    rows = 512 * 45 if device.type == "cuda" else 45
    query = torch.randn(1, 32, rows, 64, device=device, dtype=dtype)
    key, value = (torch.randn(1, 32, 1300, 64, device=device, dtype=dtype) for _ in range(2))
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    scale = 64**-0.5

    def plain() -> None:
        for part in query.split(max(1, rows // 16), 2):
            logits = (part @ key.mT) * scale
            lse = logits.logsumexp(-1)
            torch.exp(logits.sub_(lse[..., None])) @ value

    def half() -> None:
        attention_kernel.fused(query.half(), key.half(), value.half(), scale, causal=False)

    ways = {
        "fused": lambda: attention_kernel.fused(query, key, value, scale, causal=False),
        "plain": plain,
        "float16": half,
    }
    exact = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, :256].double(), key.double(), value.double(), scale=scale
    )
    table = []
    for name, work in ways.items():
        table.append((name, 1000 * seconds(work, device)))
    for name, q, k, v in (
        ("fused", query, key, value),
        *([("float16", query.half(), key.half(), value.half())] if device.type == "cuda" else []),
    ):
        found = attention_kernel.fused(q[:, :, :256].contiguous(), k, v, scale, causal=False)
        assert found is not None
        table.append((f"{name}: relative error", float((found[0].double() - exact).norm() / exact.norm())))
    torch.set_float32_matmul_precision("highest")
    show(f"attention to a context, {precision}, ms a layer", ["", ""], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--queries", type=int, help="default 1,024 on a GPU, 64 elsewhere")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--most", type=int, default=12, help="kernels a table")
    args = parser.parse_args()
    device = torch.device(args.device)
    for precision in args.precision:
        model = random_model(args.shape, precision, args.device)
        found = stages(model, args.queries or (1024 if device.type == "cuda" else 64))
        for name in args.only:
            if name in found:
                profiled(f"{args.shape}, {precision}, {name}", found[name], device, args.most)
        if "kernels" in args.only:
            attention_kernels(device, precision)
        del model, found


if __name__ == "__main__":
    main()
