"""Writes the tables of data/validity.md: python docs/fill_validity.py [RUN]... [--guard guard.json]..."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "data" / "validity.md"
LEARNERS = ("gd", "lcgd")
# What stands in a column: learner (None: the one under test), control, variant, metric.
COLUMNS: dict[str, tuple[str | None, str | None, str, str]] = {
    "likeness": (None, None, "trained", "sim_aou"),
    "dilution, vector": (None, None, "trained", "sim_aou_dilution"),
    "dilution, run": ("dilution", None, "trained", "sim_aou"),
    "beyond dilution": (None, None, "trained", "sim_aou_orthogonal"),
    "random update": (None, "random-update", "trained", "sim_aou"),
    "mismatched": (None, None, "trained", "sim_aou_mismatched"),
    "centred": (None, None, "trained", "sim_aou_centered"),
    "untrained": (None, None, "untrained", "sim_aou"),
    "position": ("zero-shot-offset", None, "trained", "sim_aou"),
    "null context": ("null-context", None, "trained", "sim_aou"),
    "random labels": (None, "random-labels", "trained", "sim_aou"),
    "other task": (None, "other-task", "trained", "sim_aou"),
    "normalised": (None, None, "trained", "sim_aou_norm"),
    "ceiling": ("in-context", "redraw", "trained", "sim_aou"),
}


def figures(rows: list[dict[str, Any]]) -> str:
    """A line a task and learner."""
    values: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        aggregate = row["layer"] is None and row["head"] is None and row["step"] is None
        if aggregate and row["reference"] == "in-context" and math.isfinite(row["value"]):
            learner = row["learner"].removesuffix(f"/{row['control']}")
            key = (row["model"], row["task"], learner, row["control"], row["variant"], row["metric"])
            values[key].append(row["value"])
    places = sorted({(model, task) for model, task, *_ in values})
    lines = ["| model, task | learner | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for model, task in places:
        for learner in LEARNERS:
            cells = []
            for who, *rest in COLUMNS.values():
                found = values.get((model, task, who or learner, *rest))
                cells.append(f"{sum(found) / len(found):+.2f}" if found else "–")
            if cells[0] != "–":
                lines.append(f"| {model}, {task} | `{learner}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sizes(rows: list[dict[str, Any]]) -> str:
    """What the figures are of.

    >>> row = {"model": "m", "task": "t", "variant": "trained", "learner": "gd", "metric": "sim_aou", "layer": None}
    >>> sizes([{**row, "shots": 4, "lr": 0.1, "n": 9, "seed": seed} for seed in (0, 1)])
    'm, t: 4 shots, 2 seeds, 9 queries, rate 0.1.'
    """
    places: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        wanted = row["variant"] == "trained" and row["metric"] == "sim_aou" and row["layer"] is None
        if wanted and row["learner"] in LEARNERS:
            places[f"{row['model']}, {row['task']}"].append(row)
    said = []
    for place, own in sorted(places.items()):
        shots, rates = ("/".join(f"{v:g}" for v in sorted({r[k] for r in own})) for k in ("shots", "lr"))
        seeds, queries = len({row["seed"] for row in own}), max(row["n"] for row in own)
        said.append(f"{place}: {shots} shots, {seeds} seeds, {queries} queries, rate {rates}")
    return "; ".join(said) + "."


def guard(rows: list[dict[str, Any]]) -> str:
    from benchmarks.guard import counts, table

    by_model: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    parts = [f"{model}: {counts(own)}.\n\n{table(own)}" for model, own in by_model.items()]
    return "\n\n".join(parts)


def fill(text: str, block: str, content: str) -> str:
    """The page with what stands between a block's marks replaced.

    >>> fill("a <!-- x -->old<!-- end --> b", "x", "new")
    'a <!-- x -->\\nnew\\n<!-- end --> b'
    """
    pattern = rf"(<!-- {block} -->).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}\n{content}\n{found[2]}", text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="*", type=Path, help="run folders")
    parser.add_argument("--guard", action="append", type=Path, default=[])
    settings = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if settings.run:
        from dualscope.studies.run_folder.storage import RunFolder

        rows = [row for folder in settings.run for row in RunFolder.open(folder).rows().to_pylist()]
        text = fill(text, "figures", f"{figures(rows)}\n\n{sizes(rows)}")
    if settings.guard:
        text = fill(text, "guard", guard([row for file in settings.guard for row in json.loads(file.read_text())]))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
