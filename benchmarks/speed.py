"""How long everything takes at one shape, measured in one run and as ratios.

python -m benchmarks.speed                                            a small model on the CPU
python -m benchmarks.speed --shape 1.3b --device cuda --precision bfloat16 tf32 float32
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import lessons
from benchmarks.reference import plain_batches, reference_flow
from benchmarks.shapes import SHAPES, VOCABULARY, random_model
from benchmarks.timing import machine, peak_bytes, save, seconds, show, wait
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench
from dualscope.metrics import METRICS
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.models.reading.memory import weight_bytes
from dualscope.tasks.lesson import Lesson

RATE = 0.003


def per_query(model: Model, lesson: Lesson, reference: int, repeats: int) -> dict[str, float]:
    """Milliseconds a query of the reference flow, of a plain batched forward, of zero-shot and in-context reading."""
    n, device = len(lesson.queries), model.device
    prefix = model.prefix(lesson.context)
    found = {
        "plain forward": seconds(lambda: plain_batches(model, lesson), device, repeats) / n,
        "zero-shot": seconds(lambda: model.read(lesson), device, repeats) / n,
        "in-context": seconds(lambda: model.read(lesson, prefix), device, repeats) / n,
        "in-context with encoding": seconds(lambda: model.read(lesson, model.prefix(lesson.context)), device, repeats)
        / n,
    }
    if reference:
        found["reference flow"], found["reference flow, JSON"] = reference_flow(model, lesson, reference)
    return {name: 1000 * value for name, value in found.items()}


def agreement(model: Model, lesson: Lesson, queries: int = 16) -> dict[str, float]:
    """Relative difference between reading after the shared prefix and with the whole context, query by query."""
    few = first_queries(lesson, queries)
    shared = model.read(few, model.prefix(few.context))
    whole = model.read(replace(few, bos=few.context), batch_size=1, plain=True)
    return {
        "label_logprobs": relative(shared.label_logprobs, whole.label_logprobs),
        "attn_out, worst layer": max(
            relative(shared.attn_out[:, i], whole.attn_out[:, i]) for i in range(model.n_layers)
        ),
    }


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def training(model: Model, lesson: Lesson, repeats: int) -> dict[str, float]:
    """Seconds for one pass of each learner over the demonstrations, reading left out; and the memory it needs."""
    found: dict[str, float] = {}
    asked = first_queries(lesson, 1)
    reading = seconds(lambda: model.read(asked), model.device, repeats)
    for name in ("gd", "lcgd"):

        def learn(name: str = name) -> object:
            return Bench(model, asked).learned(name, lr=RATE)

        wait(model.device)
        start = time.perf_counter()
        learn()
        wait(model.device)
        found[f"{name}, first time"] = time.perf_counter() - start
        whole = seconds(learn, model.device, repeats, warmup=0) - reading
        # Four demonstrations are the fewest that are recorded as a CUDA graph: what they take more than four steps
        # is what recording takes.
        few = replace(asked, training=asked.training[:4])
        start_up = seconds(lambda name=name, few=few: Bench(model, few).learned(name, lr=RATE), model.device, repeats)
        steps = len(asked.training)
        found[f"{name}, {steps} steps"] = (whole - (start_up - reading)) * steps / (steps - 4)
        found[f"{name}, with recording"] = whole
        if (peak := peak_bytes(learn, model.device)) is not None:
            delta = sum(change.nbytes for change in Bench(model, asked).learned(name, lr=RATE).delta.values())
            found[f"{name}, peak beyond weights and deltas, share of weights"] = (peak - delta) / weight_bytes(model.hf)
    return found


def episode(model: Model, lesson: Lesson) -> dict[str, float]:
    """One whole episode with every default metric, by stage, in seconds."""
    found: dict[str, float] = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        wait(model.device)
        found[name] = time.perf_counter() - start
        return result

    want = frozenset().union(*(METRICS[name].wants for name in METRICS if METRICS[name].default))
    bench = Bench(model, lesson, want=want)
    stage("zero-shot", lambda: bench.zero_shot)
    stage("in-context", lambda: bench.in_context)
    for name in ("gd", "lcgd"):
        learning = LearnerSpec(name, lr=RATE)
        stage(name, lambda learning=learning: bench.result(learning))
        stage(f"{name}, read again and metrics", lambda learning=learning: measure_cell(bench, learning))
    return found | {"episode": sum(found.values())}


def similarities(model: Model, lesson: Lesson, rate: float) -> tuple[dict[str, float], float]:
    bench = Bench(model, lesson)
    names = ["sim_aou", "sim_aou_norm", "sim_am", "sim_am_delta"]
    found = measure_cell(bench, LearnerSpec("gd", lr=rate), metrics=names)
    rows, learned = found.rows, found.result.learned
    assert learned.log.update_norm is not None
    return {r["metric"]: r["value"] for r in rows if r["layer"] is None}, float(learned.log.update_norm.mean())


def precision_probe(shape: str, device: str, precisions: list[str], task: str, queries: int) -> list[dict[str, Any]]:
    """What a lower precision does to the similarities, against float32 with full products, at two sizes of update."""
    found = []
    for rate in (RATE / 10, RATE):
        base: dict[str, float] = {}
        for precision in ["float32", *(p for p in precisions if p != "float32")]:
            model = random_model(shape, precision, device)
            lesson = lessons.real_lengths(task, 32, queries, VOCABULARY)
            values, size = similarities(model, lesson, rate)
            base = base or values
            found.append(
                {"precision": precision, "rate": rate, "relative update": size}
                | {name: values[name] for name in values}
                | {f"{name} differs by": abs(values[name] - base[name]) for name in values}
            )
            del model
            release()
    return found


def growth(shape: str, precision: str, device: str, repeats: int) -> dict[str, list[tuple[Any, float, float]]]:
    """Milliseconds a query, zero-shot and in-context, against shots, queries and model size."""

    def timed(model: Model, lesson: Lesson) -> tuple[float, float]:
        times = per_query(model, lesson, 0, repeats)
        return times["zero-shot"], times["in-context with encoding"]

    found: dict[str, list[tuple[Any, float, float]]] = {"shots": [], "queries": [], "shape": []}
    model = random_model(shape, precision, device)
    most = 2000 if device == "cuda" else 200
    for shots in (1, 2, 4, 8, 16, 32, 64):
        found["shots"].append((shots, *timed(model, lessons.real_lengths("mr", shots, most, VOCABULARY))))
    for queries in (most // 20, most // 4, most):
        found["queries"].append((queries, *timed(model, lessons.real_lengths("mr", 32, queries, VOCABULARY))))
    del model
    for name in list(SHAPES)[: list(SHAPES).index(shape) + 1]:
        release()
        lesson = lessons.real_lengths("mr", 32, most, VOCABULARY)
        found["shape"].append((name, *timed(random_model(name, precision, device), lesson)))
    return found


def first_queries(lesson: Lesson, n: int) -> Lesson:
    return replace(lesson, queries=lesson.queries[:n], labels=lesson.labels[:n], query_ids=lesson.query_ids[:n])


def release() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="21m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--queries", type=int, help="of an episode; default 2000 on a GPU, 200 elsewhere")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--reference", type=int, default=4, help="queries of the reference flow; 0: leave it out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    run(parser.parse_args())


PARTS = ("queries", "agreement", "training", "episode", "precision", "growth")


def run(args: argparse.Namespace) -> None:
    queries = args.queries or (2000 if args.device == "cuda" else 200)
    results: dict[str, Any] = {"machine": machine(torch.device(args.device)), "shape": args.shape}
    for precision in args.precision:
        results[precision] = one_precision(args, precision, queries)
        save(args.out, results)
        release()
    if "precision" in args.only and len(args.precision) > 1:
        found = precision_probe(args.shape, args.device, args.precision, "mr", min(queries, 512))
        results["precision probe"] = found
        show("what precision does to the similarities", list(found[0]), [list(row.values()) for row in found])
    if "growth" in args.only:
        results["growth"] = growth(args.shape, args.precision[0], args.device, 1)
        for axis, rows in results["growth"].items():
            show(f"ms a query against {axis}", [axis, "zero-shot", "in-context"], rows)
    save(args.out, results)


def one_precision(args: argparse.Namespace, precision: str, queries: int) -> dict[str, Any]:
    title = f"{args.shape}, {precision}, {args.device}"
    model = random_model(args.shape, precision, args.device)
    found: dict[str, Any] = {}
    even = lessons.of_length(1300, 45, min(queries, 1024), VOCABULARY)
    real = lessons.real_lengths("mr", 32, queries, VOCABULARY)
    if "queries" in args.only:
        for name, lesson in (("context 1,300, queries of 45", even), ("mr, 32 shots", real)):
            times = per_query(model, lesson, args.reference, args.repeats)
            base = times["zero-shot"]
            found[name] = times
            show(f"{title}: {name}", ["ms a query", "", "x zero-shot"], [(k, v, v / base) for k, v in times.items()])
    for part, work in (
        ("agreement", lambda: agreement(model, real)),
        ("training", lambda: training(model, real, args.repeats)),
        ("episode", lambda: episode(model, real)),
    ):
        if part in args.only:
            found[part] = work()
            if part == "episode":
                found[part] = work()  # the first one warmed up kernels and graphs
            show(f"{title}: {part}", [part, ""], list(found[part].items()))
    return found


if __name__ == "__main__":
    main()
