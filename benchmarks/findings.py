"""The tables of docs/findings.md from a run folder: `python -m benchmarks.findings RUN`."""

import csv
import json
import sys
from pathlib import Path

METRICS = ("sim_aou", "sim_aou_centered", "sim_aou_direct", "sim_am", "sim_am_centered", "sim_am_delta")
BASELINES = ("sim_aou_mismatched", "sim_aou_random")

Row = dict[str, str]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.findings RUN")
    run = Path(sys.argv[1])
    rows = list(csv.DictReader((run / "summary.csv").open()))
    tasks = sorted({row["task"] for row in rows} - {"all tasks"})
    learners = list(dict.fromkeys(name(row) for row in rows))
    print(accuracies(rows, tasks, learners))
    for metric in METRICS:
        print(similarities(rows, tasks, learners, metric))
    for found in json.loads((run / "verdict.json").read_text())["verdicts"]:
        print("\n".join(f"- {sentence}" for sentence in found["sentences"]))


def name(row: Row) -> str:
    options = json.loads(row["options"])
    return row["learner"] + "".join(f" ({value})" for value in options.values())


def accuracies(rows: list[Row], tasks: list[str], learners: list[str]) -> str:
    lines = [f"| accuracy, trained | {' | '.join(tasks)} |", "|---|" + "---|" * len(tasks)]
    for learner in learners:
        cells = [find(rows, "accuracy", "trained", task, learner) for task in tasks]
        lines.append(f"| {learner} | {' | '.join(map(shown, cells))} |")
    return "\n".join(lines) + "\n"


def similarities(rows: list[Row], tasks: list[str], learners: list[str], metric: str) -> str:
    head = [f"{task}{', untrained' * (variant == 'untrained')}" for task in tasks for variant in VARIANTS]
    lines = [f"| {metric} | against | {' | '.join(head)} |", "|---|---|" + "---|" * len(head)]
    for learner in learners:
        pairs = [(task, variant) for task in tasks for variant in VARIANTS]
        cells = [find(rows, metric, variant, task, learner) for task, variant in pairs]
        if any(cells):
            reference = next(cell["reference"] for cell in cells if cell)
            lines.append(f"| {learner} | {reference} | {' | '.join(map(shown, cells))} |")
        if metric == "sim_aou" and learner in ("gd", "lcgd"):
            for baseline in BASELINES:
                cells = [find(rows, baseline, variant, task, learner) for task, variant in pairs]
                label = baseline.removeprefix("sim_aou_")
                lines.append(f"| {learner}, {label} null | in-context | {' | '.join(map(shown, cells))} |")
    return "\n".join(lines) + "\n"


VARIANTS = ("trained", "untrained")


def find(rows: list[Row], metric: str, variant: str, task: str, learner: str) -> Row | None:
    wanted = (metric, variant, task, learner)
    return next((r for r in rows if (r["metric"], r["variant"], r["task"], name(r)) == wanted), None)


def shown(row: Row | None) -> str:
    if row is None or row["value"] == "nan":
        return ""
    value, low, high = (f"{float(row[key]):.2f}".replace("0.", ".") for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
