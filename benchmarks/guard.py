"""What float32 gets wrong, and whether the guard says so: `python -m benchmarks.guard --out guard.json`.

Every number of every layer is computed in float32 and in float64, from the training on. A number is wrong where the two
are further apart than the verdict's margin; it is flagged where its signal to noise is below the threshold.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import SNR_THRESHOLD
from dualscope.learners import Bench
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.tasks import Episode, Task, make_lesson

GUARDS = {
    "sim_aou": "snr",
    "sim_aou_centered": "snr_centered",
    "sim_aou_orthogonal": "snr_orthogonal",
    "sim_am_delta": "snr_scores",
}
WRONG = 0.02  # the verdict's margin


def measured(bench: Bench, learning: LearnerSpec) -> dict[tuple[str, int | None], float]:
    rows = measure_cell(bench, learning, metrics=[*GUARDS, *GUARDS.values()]).rows
    return {(row["metric"], row["layer"]): row["value"] for row in rows if row["head"] is None}


def compare(model: str, task: str, data: str | None, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a learner, rate, metric and layer: both values and the guard's."""
    benches = {}
    for dtype in ("float32", "float64"):
        loaded = Model.load(model, device=settings.device, dtype=dtype, offline=True)
        episode = Episode.draw(Task.load(task, data=data), settings.shots, settings.seed, settings.queries)
        benches[dtype] = Bench(loaded, make_lesson(episode, loaded.tokenizer, loaded.max_positions))
    found = []
    for rate in settings.rates:
        for learner in settings.learners:
            learning = LearnerSpec(learner, lr=rate)
            narrow, wide = (measured(benches[dtype], learning) for dtype in ("float32", "float64"))
            for bench in benches.values():
                bench.forget(learning)
            for metric, guard in GUARDS.items():
                for layer in range(loaded.n_layers):
                    values = narrow[metric, layer], wide[metric, layer]
                    if not all(map(math.isfinite, values)):
                        continue
                    found.append(
                        {
                            "model": Path(model).name,
                            "task": task,
                            "learner": learner,
                            "lr": rate,
                            "metric": metric,
                            "layer": layer,
                            "float32": values[0],
                            "float64": values[1],
                            "snr": narrow[guard, layer],
                            "wrong": abs(values[0] - values[1]) > WRONG,
                            "flagged": narrow[guard, layer] < SNR_THRESHOLD,
                        }
                    )
    return found


def table(rows: list[dict[str, Any]], short: bool = False) -> str:
    """A line a learner, rate and metric (``short``: not one a metric): of all layers, the number furthest off."""
    lines = [
        "| model, task | learner | rate | metric | worst layer | float32 | float64 | signal to noise | the guard |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = row["model"], row["task"], row["learner"], row["lr"]
        groups.setdefault(key if short else (*key, row["metric"]), []).append(row)
    for (model, task, learner, rate, *_), own in groups.items():
        worst = max(own, key=lambda row: abs(row["float32"] - row["float64"]))
        said = "flagged" if worst["flagged"] else ("WRONG, not flagged" if worst["wrong"] else "right")
        lines.append(
            f"| {model}, {task} | `{learner}` | {rate:g} | `{worst['metric']}` | {worst['layer']} "
            f"| {worst['float32']:+.3f} | {worst['float64']:+.3f} | {worst['snr']:.3g} | {said} |"
        )
    return "\n".join(lines)


def counts(rows: list[dict[str, Any]]) -> str:
    seen = Counter((row["wrong"], row["flagged"]) for row in rows)
    right = seen[False, False] + seen[False, True]
    alarms = seen[False, True] / right if right else math.nan
    found = (
        f"{len(rows)} numbers: {seen[True, True]} wrong and flagged, {seen[True, False]} wrong and not flagged, "
        f"{right} right, of which {seen[False, True]} flagged ({alarms:.1%} false alarms)"
    )
    for words, least, most in (("below 10", 0, 10), (f"of 10 to {SNR_THRESHOLD:g}", 10, SNR_THRESHOLD)):
        off = [abs(row["float32"] - row["float64"]) for row in rows if not row["wrong"] and least <= row["snr"] < most]
        if off:
            found += f"; {len(off)} of these at a signal to noise {words}, off by {median(off):.4f} (median)"
    noticed = [row["snr"] for row in rows if row["wrong"]]
    return found + (f"; the wrong ones have at most {max(noticed):.3g}" if noticed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--data", default=None)
    parser.add_argument("--task", action="append", required=True)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[1e-5, 1e-3, 1.0])
    parser.add_argument("--learners", type=lambda text: text.split(","), default=["gd", "lcgd", "gd-linearized"])
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--short", action="store_true", help="a line a learner and rate, not one a metric too")
    settings = parser.parse_args()
    rows = [row for task in settings.task for row in compare(settings.model, task, settings.data, settings)]
    print(table(rows, settings.short))
    print(counts(rows))
    if settings.out is not None:
        settings.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
