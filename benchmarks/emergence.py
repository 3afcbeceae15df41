"""docs/data/emergence.md and the picture of docs/emergence.md, from the run of benchmarks/studies/emergence.yaml.

    python -m benchmarks.emergence RUN

The opening of the page is written by hand and kept; tables and picture behind the mark come from the run's summary.
"""

import csv
import json
import math
import re
import sys
from pathlib import Path

from benchmarks.tables import found, table
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- From here on written by `python -m benchmarks.emergence`. -->\n"
Point = dict[str, float]
Key = tuple[str, str, str, str]  # task, learner, control, metric
# heading, learner, control, metric
COLUMNS = (
    ("zero-shot", ZERO_SHOT.name, "", "accuracy"),
    ("in-context", IN_CONTEXT.name, "", "accuracy"),
    ("gd", "gd", "", "accuracy"),
    ("sim_aou of gd", "gd", "", "sim_aou"),
    ("of gd under random-labels", "gd", "random-labels", "sim_aou"),
    ("of dilution", "dilution", "", "sim_aou"),
    ("sim_aou_orthogonal of gd", "gd", "", "sim_aou_orthogonal"),
    ("sim_am of gd", "gd", "", "sim_am"),
    ("explained by gd", "gd", "", "explained"),
)
PANELS = (("accuracy", COLUMNS[:3]), ("sim_aou", COLUMNS[3:6]), ("likeness of gd", (COLUMNS[6], COLUMNS[7])))


def curves(run: Path) -> dict[Key, dict[int, Point]]:
    """Each figure by training step."""
    found_curves: dict[Key, dict[int, Point]] = {}
    with (run / "summary.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step = re.search(r"checkpoint-(\d+)$", row["model"])
            if step is None or row["reference"] not in ("", IN_CONTEXT.name):
                continue
            learner = row["learner"].removesuffix(f"/{row['control']}")
            key = (row["task"], learner, row["control"], row["metric"])
            numbers = {name: float(row[name] or math.nan) for name in ("value", "low", "high")}
            found_curves.setdefault(key, {})[int(step[1])] = numbers
    return found_curves


def tables(figures: dict[Key, dict[int, Point]], tasks: list[str]) -> str:
    parts = []
    for task in tasks:
        own = [figures[task, *column[1:]] for column in COLUMNS]
        rows = [[f"{step:,}", *(found(curve.get(step)) for curve in own)] for step in sorted(own[1])]
        parts.append(f"## {task}\n\n" + table(["step", *(column[0] for column in COLUMNS)], rows))
    return "\n".join(parts)


def draw(figures: dict[Key, dict[int, Point]], tasks: list[str], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.9 * len(tasks)), layout="constrained")
    axes = figure.subplots(len(tasks), len(PANELS), sharex=True, squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        for panel, (title, columns) in zip(row, PANELS, strict=True):
            for heading, *key in columns:
                curve = figures[task, key[0], key[1], key[2]]
                steps = sorted(curve)
                panel.plot(steps, [curve[s]["value"] for s in steps], marker=".", label=heading)
                ends = ([curve[s][end] for s in steps] for end in ("low", "high"))
                panel.fill_between(steps, *ends, alpha=0.15)
            panel.set(title=f"{task.removeprefix('embedded-')}: {title}", ylim=(-0.1, 1.05))
            panel.legend(fontsize=7)
    for panel in axes[-1]:
        panel.set_xlabel("training step")
    figure.savefig(out, dpi=110)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.emergence RUN")
    run = Path(sys.argv[1])
    figures = curves(run)
    tasks = sorted({key[0] for key in figures} - {"all tasks"})
    record = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    page = DOCS / "data" / "emergence.md"
    before, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        sys.exit(f"{page}: the line {MARK.strip()} is missing")
    draw(figures, tasks, DOCS / "images" / "emergence.png")
    when = str(record.get("at", ""))[:10]
    said = f"Measured {when}, {record.get('dtype', '')}; in brackets 95 % intervals over seeds.\n"
    page.write_text(f"{before}{MARK}\n{said}\n{tables(figures, tasks)}", encoding="utf-8")


if __name__ == "__main__":
    main()
