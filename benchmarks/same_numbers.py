"""Whether a change of the code changed a number: small studies of everything, before and after.

python -m benchmarks.same_numbers --out before.json       at the commit before
python -m benchmarks.same_numbers --against before.json   with the change; exit code 1 where a number differs

Every learner, control, intervention and metric there is, in float64 on the embedded model, with what the findings say
of them; the quick size of every regression experiment; and both sides of every identity. Rows are told apart by all
that is not a value. A row that is gone or new, or a value more than 1e-9 off (NaN is NaN), is a difference. It takes
minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dualscope.commands.run_result import conclude
from dualscope.core.rows import CELL_COLUMNS
from dualscope.learners.controls import COMBINATORS
from dualscope.learners.interventions import INTERVENTIONS
from dualscope.learners.learner import LEARNERS
from dualscope.metrics import METRICS
from dualscope.regression import EXPERIMENTS
from dualscope.studies.execute.runner import Runner
from dualscope.studies.study import Study
from dualscope.theory import chosen, judge

TOLERANCE = 1e-9
TASKS = ["embedded-sst2", "embedded-trec"]
SMALL: dict[str, dict[str, Any]] = {
    "static-patch": {"fit": 16},
    "kv-distilled": {"lr": 0.1, "fit": 8, "steps": 5},
    "kv-aligned": {"fit": 8, "steps": 3},
    "gd-layers": {"lr": 0.3},
    "gd-tuned": {"epochs": 1, "loss": "all", "parameters": "kv", "optimiser": "sgd"},
    "gd-nearest": {"epochs": 1, "fit": 8, "draws": 8},
}
"""Of the learners whose fits and choices take long: little to fit on, and one setting to choose."""
OTHER_OPTIONS: dict[str, dict[str, Any]] = {
    "gd": {"epochs": 2},
    "lcgd": {"readout": "attention"},
    "task-vector": {"mode": "add"},
    "static-patch": {"matrix": False, "fit": 16},
}
"""Settings that lead through other code than the defaults do."""
CONTROLLED = {
    "random-labels": ["gd", "lcgd", "probe", "task-vector"],
    "other-task": ["gd"],
    "random-update": ["gd", "task-vector"],
    "unlabelled": ["gd"],
    "redraw": ["in-context", "gd"],
    "reorder": ["gd"],
    "places": ["in-context"],
}


RESPONDING = ["gd", "lcgd", "gd-linearized", "probe", "kernel", "task-vector", "function-vector", "functional-gd"]
"""Learners that are run on the draws of every intervention, each with its plant where it can be planted."""
COMMON: dict[str, Any] = {"shots": 10, "balanced": True, "lr": [0.1], "dtype": "float64"}


def of_learners(only: list[str], tasks: list[str]) -> Study:
    """Every learner as it is and in the settings above, each control of those that have it, every metric."""
    learners: list[dict[str, Any]] = [
        {"learner": name, "options": SMALL.get(name, {}), "variants": ["trained"]}
        for name in LEARNERS
        if name not in ("zero-shot", "in-context")
    ]
    learners += [{"learner": name, "options": own, "variants": ["trained"]} for name, own in OTHER_OPTIONS.items()]
    learners += [
        {"learner": name, "control": control, "variants": ["trained"]}
        for control in COMBINATORS
        for name in CONTROLLED[control]
    ]
    learners += [{"learner": "in-context", "control": "reorder", "options": {"draw": draw}} for draw in range(1, 6)]
    learners = [entry for entry in learners if not only or entry["learner"] in ("in-context", *only)]
    plain = next(entry for entry in learners if entry["learner"] == "gd")
    plain["variants"] = ["trained", "untrained"]
    own = {"tasks": tasks, "variants": ["trained", "untrained"], "seeds": 1, "queries": 4, "per_head": True}
    return Study.build(COMMON | own | {"learners": learners, "metrics": list(METRICS)})


def of_responses(only: list[str]) -> Study:
    """Some learners over the seeds that an answer needs, and on the draws of every intervention."""
    interventions = [{"kind": name, "draws": 8, "queries": 3} for name in INTERVENTIONS]
    own = {"tasks": TASKS[:1], "seeds": 3, "queries": 6, "controls": ["random-labels"]}
    learners = [name for name in RESPONDING if name in (only or RESPONDING)]
    return Study.build(COMMON | own | {"learners": learners, "interventions": interventions})


def measured(study: Study, folder: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a study, and all that follows from them."""
    result = Runner(study, folder, offline=True).execute()
    for row in result.run.to_arrow().to_pylist():
        named = {name: value for name, value in row.items() if name not in ("value", "low", "high", "n")}
        cell = " ".join(str(named.pop(name)) for name in CELL_COLUMNS)
        for number in ("value", "low", "high", "n"):
            yield f"row {cell} {sorted(named.items(), key=str)} {number}", row[number]
    said = conclude(result, report=False)
    for failure in result.failures:
        yield f"failure {failure.about}", failure.reason
    yield from leaves("summary", said.rows)
    yield from leaves("responses", said.responses)
    yield from leaves("verdicts", said.answers)


def regressions(_folder: Path, _args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """The rows and tables of every regression experiment at its quick size."""
    for name in EXPERIMENTS:
        found = EXPERIMENTS[name].quick().run()
        yield from leaves(name, [dict(row) for row in found.rows])
        yield from leaves(f"{name} tables", [table.rows for table in found.tables])


def identities(_folder: Path, _args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for found in (judge(one, 0) for one in chosen(())):
        yield found.identity.name, found.error
        yield f"{found.identity.name} float32", found.error32


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each number and text of nested lists and mappings, with its place there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(f"{path}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from leaves(f"{path}[{place}]", inner)
    else:
        yield path, value


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[tuple[str, Any]]]] = {
    "learners": lambda folder, args: measured(of_learners(args.learners, args.tasks), folder),
    "responses": lambda folder, args: measured(of_responses(args.learners), folder),
    "regression": regressions,
    "theory": identities,
}


def everything(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Each part's numbers by name, and its seconds of the processor."""
    whole: dict[str, Any] = {}
    for part in args.parts:
        before = processor()
        numbers: dict[str, Any] = {}
        for name, value in PARTS[part](folder / part, args):
            if name in numbers:
                raise SystemExit(f"two rows of {part} have one name: {name}")
            numbers[name] = value if isinstance(value, (int, float, type(None))) else str(value)
        whole[part] = {"seconds": processor() - before, "numbers": numbers}
        print(f"{part}: {len(numbers):,} numbers, {whole[part]['seconds']:.0f} s of the processor", flush=True)
    return whole


def processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def distance(before: Any, after: Any) -> float:
    """0 for the same text, None or NaN; infinite where one of two is a number."""
    numbers = [one for one in (before, after) if isinstance(one, (int, float))]
    if len(numbers) < 2:
        return 0.0 if before == after else math.inf
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    found = abs(before - after)
    return math.inf if math.isnan(found) else found


def compare(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Says what differs; whether nothing does."""
    same = True
    for part, now in after.items():
        then = before[part]
        old, new = then["numbers"], now["numbers"]
        apart = {name: distance(old[name], new[name]) for name in old.keys() & new.keys()}
        off = sorted((name for name, far in apart.items() if far > TOLERANCE), key=lambda name: -apart[name])
        differences = {"gone": sorted(old.keys() - new.keys()), "new": sorted(new.keys() - old.keys()), "other": off}
        print(
            f"{part}: {len(apart):,} numbers in both, the largest difference is {max(apart.values(), default=0):.1e}; "
            f"{', '.join(f'{len(names)} {word}' for word, names in differences.items())}; "
            f"{then['seconds']:.0f} s of the processor before, {now['seconds']:.0f} s after"
        )
        for word, names in differences.items():
            for name in names[:10]:
                print(f"  {word}: {name}: {old.get(name)} -> {new.get(name)}")
            same = same and not names
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the numbers are kept")
    parser.add_argument("--against", type=Path, help="numbers that an earlier commit kept")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--learners", nargs="+", default=[], help="these alone, gd among them; all if not given")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="of the study of all metrics")
    parser.add_argument("--folder", type=Path, help="where the studies' run folders are kept; else it is removed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as passing:
        found = everything(args, args.folder or Path(passing))
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=0))
    if args.against is not None and not compare(json.loads(args.against.read_text()), found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
