"""What the papers claim, what we check, and what was found: a table of the shipped results."""

import json
from pathlib import Path
from statistics import fmean

import yaml

from dualscope.regression.emergence import APPEARS
from dualscope.regression.experiment import EXPERIMENTS
from dualscope.regression.results_folder import PROVENANCE, SETTINGS, claims, load, shipped_runs

PARTED = ("classes", "conditions", "seeds", "arms", "kinds", "sharing", "noises", "depths", "widths")
"""Settings in which the parts of an experiment may differ; the whole has all of theirs."""


def claims_table() -> str:
    """Markdown: a row a check, under the claim of its paper; of the experiments whose results are shipped."""
    lines = ["| paper's claim | our check | found (mean over seeds [95 % interval]) | |", "|---|---|---|---|"]
    full = shipped_runs()
    for name, paper in claims().items():
        if name not in full:
            continue
        own = _checks(full[name])
        own += [f"{what} | not run at full size yet |" for what in _missing(name, full[name])]
        lines += _under(f"**{name}**: {paper}", own)
    return "\n".join(lines)


def _under(claim: str, checks: list[str]) -> list[str]:
    """Rows of which the first names the claim."""
    return [f"| {claim if place == 0 else ''} | {check} |" for place, check in enumerate(checks)]


def _checks(place: Path) -> list[str]:
    return [
        f"{_plain(check['claim'])} | {_plain(check['found'])} | {'holds' if check['holds'] else '**no**'}"
        for check in json.loads((place / PROVENANCE).read_text())["checks"]
    ]


def _missing(name: str, place: Path) -> list[str]:
    """What the full experiment has and the shipped one has not."""
    full = EXPERIMENTS[name].full().model_dump(mode="json")
    there = yaml.safe_load((place / SETTINGS).read_text())
    lacking = {
        field: [v for v in full[field] if v not in there[field]] for field in PARTED if field in full and field in there
    }
    return [f"{field}: {', '.join(map(str, values))}" for field, values in lacking.items() if values]


def trainings_table() -> str:
    """Markdown: a row a training, with the steps it had and the error it ended with."""
    lines = [
        "| training | steps | in-context learning appeared | error or loss in training, mean over seeds | worst seed |",
        "|---|---|---|---|---|",
    ]
    full = shipped_runs()
    for name in filter(full.__contains__, claims()):
        lines += _trainings(name, full[name])
    return "\n".join(lines)


def minutes_table() -> str:
    """Markdown: how long each experiment took, the longest first."""
    lines = ["| experiment | minutes | jobs |", "|---|---|---|"]
    told = {name: json.loads((place / PROVENANCE).read_text()) for name, place in shipped_runs().items()}
    for name in sorted(told, key=lambda name: -told[name]["seconds"]):
        lines.append(f"| {name} | {told[name]['seconds'] / 60:.1f} | {len(told[name]['parts'])} |")
    return "\n".join(lines)


def _trainings(name: str, place: Path) -> list[str]:
    curves: dict[tuple[str, str], dict[str, dict[int, dict[float, float]]]] = {}
    for row in load(place).to_pylist():
        if row["x_name"] == "step" and row["seed"] is not None:
            of = curves.setdefault((row["panel"], row["series"]), {}).setdefault(row["metric"], {})
            of.setdefault(row["seed"], {})[row["x"]] = row["value"]
    marked = any(APPEARS in metrics for metrics in curves.values())
    return [_training(f"{name}, {panel}: {series}", metrics, marked) for (panel, series), metrics in curves.items()]


def _training(name: str, metrics: dict[str, dict[int, dict[float, float]]], marked: bool) -> str:
    curves = next(of for metric, of in metrics.items() if metric != APPEARS)
    steps = max(max(curve) for curve in curves.values())
    first = [curve[min(curve)] for curve in curves.values()]
    last = [curve[max(curve)] for curve in curves.values()]
    means = f"{fmean(first):.3g} to {fmean(last):.3g} | {max(last):.3g}"
    appeared = f"{len(metrics.get(APPEARS, {}))} of {len(curves)} seeds" if marked else ""
    return f"| {name} | {steps:g} | {appeared} | {means} |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
