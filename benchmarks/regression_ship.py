"""The shipped regression results and the tables of docs/data/regression.md, from `benchmarks.regression_full`'s parts.

python -m benchmarks.regression_ship PARTS.tar.gz...     # later files replace the jobs of earlier ones; a training
                                                         # that two jobs have is the first's
python -m benchmarks.regression_ship --without garg-tree PARTS.tar.gz     # jobs that were cut short are no results
python -m benchmarks.regression_ship --quick             # a point of every --quick run anew, for the tests
python -m benchmarks.regression_ship                     # the claims' words and the tables alone, from what is shipped
"""

import argparse
import gzip
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.regression_claims import PARTED, claims_table, minutes_table, trainings_table
from benchmarks.regression_full import JOBS
from dualscope.core.folder import Folder
from dualscope.core.rows import ExperimentRow
from dualscope.regression import EXPERIMENTS, Experiment, Results, save
from dualscope.regression.emergence import APPEARS
from dualscope.regression.results_folder import PROVENANCE, SHIPPED, claims, shipped_runs
from dualscope.studies.run_folder.storage import RunFolder

QUICK = SHIPPED / "quick.json"
POINT = ("panel", "series", "metric", "x_name", "x", "seed", "value")
PAGE = Path(__file__).parents[1] / "docs" / "data" / "regression.md"
CLAIMS = "<!-- claims: python -m benchmarks.regression_ship -->", "<!-- end of claims -->"
MINUTES = "<!-- minutes: python -m benchmarks.regression_ship -->", "<!-- end of minutes -->"
TRAININGS = "<!-- trainings: python -m benchmarks.regression_ship -->", "<!-- end of trainings -->"


def read_parts(files: list[Path], without: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """job -> what it stored, as jobs are ordered; the last file that has it wins."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        with tarfile.open(file) as whole:
            for member in whole.getmembers():
                content = whole.extractfile(member) if member.name.endswith(".json.gz") else None
                if content is not None:
                    stored = json.loads(gzip.decompress(content.read()))
                    found[stored["job"]] = stored
    order = [job.name for job in JOBS]
    kept = {job: stored for job, stored in found.items() if job not in without}
    unknown = [*({*without} - {*found}), *({*kept} - {*order})]
    if unknown:
        raise SystemExit(f"no such jobs: {', '.join(sorted(unknown))}; leave out those of old with --without")
    return {job: kept[job] for job in order if job in kept}


def settings_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the parts have in common, all that they were divided by, and the most steps that one was allowed.

    >>> settings_of([{"d": 8, "steps": 9, "noises": [0.0]}, {"d": 8, "steps": 6, "noises": [0.5]}])
    {'d': 8, 'noises': (0.0, 0.5), 'steps': 9}
    """
    first = parts[0]
    found = {
        name: value
        for name, value in first.items()
        if name not in (*PARTED, "minutes", "steps") and all(part.get(name) == value for part in parts)
    }
    for name in PARTED:
        if name in first:
            found[name] = tuple(dict.fromkeys(value for part in parts for value in part[name]))
    if "seeds" in found:
        found["seeds"] = tuple(sorted(found["seeds"]))
    return found | {"steps": max(part["steps"] for part in parts)}


def experiment_of(kind: type[Experiment], parts: list[dict[str, Any]]) -> Experiment:
    """At the parts' settings. One that is newer than they are has its default, which is how it was before, and not that
    of today's full size.
    """
    newer = {
        name: field.default
        for name, field in kind.model_fields.items()
        if not any(name in settings for settings in parts)
    }
    return kind.full(**newer | settings_of(parts))


def seconds_of(parts: list[dict[str, Any]]) -> float:
    """From the first job's start to the last one's end; parts that do not say when they ended began together."""
    return max(float(part.get("ended", part["seconds"])) for part in parts)


def ship(parts: list[dict[str, Any]]) -> None:
    """All parts of one experiment as one run folder in the package."""
    results = Results.joined([Results.from_dict(part["results"]) for part in parts])
    experiment = experiment_of(EXPERIMENTS[results.experiment], [part["settings"] for part in parts])
    experiment.conclude(results)
    told = ("job", "seconds", "machine", "date", "python", "settings")
    about = {
        "size": "full size",
        "machine": ", ".join(sorted({part["machine"] for part in parts})),
        "date": max(part["date"] for part in parts),
        "parts": [{name: part[name] for name in told} for part in parts],
        "python": ", ".join(sorted({part["python"] for part in parts})),
        "platform": "",
        "packages": parts[0].get("packages", {}),
        "git": None,
        "where": {},
    }
    save(results, experiment, SHIPPED / results.experiment, seconds_of(parts), about=about)
    held = sum(check.holds for check in results.checks)
    print(f"{results.experiment}: {len(results.rows)} rows, {held} of {len(results.checks)} checks hold")


def refresh_claims() -> None:
    """Words, not results: what the papers claim, as we put it today."""
    for name, place in shipped_runs().items():
        known = json.loads((place / PROVENANCE).read_text())
        RunFolder(Folder.at(place)).write_json(PROVENANCE, {**known, "claim": claims()[name]})


def refresh_docs() -> None:
    text = PAGE.read_text()
    tables = {CLAIMS: claims_table(), MINUTES: minutes_table(), TRAININGS: trainings_table()}
    for (begin, end), table in tables.items():
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{table}\n{end}{after}"
    PAGE.write_text(text)


def quick_point(rows: Sequence[ExperimentRow]) -> ExperimentRow:
    """Where its last training ended, or, where nothing is trained, the last number of a seed."""
    own = [row for row in rows if row["seed"] is not None and row["metric"] != APPEARS]
    trained = [row for row in own if row["x_name"] == "step"]
    return (trained or own)[-1]


def ship_quick_points() -> None:
    """The last number that each ``--quick`` run finds: tests run it again."""
    points = {}
    for name in EXPERIMENTS:
        rows = EXPERIMENTS[name].quick().run().rows
        points[name] = {key: value for key, value in quick_point(rows).items() if key in POINT}
        print(f"{name}: {points[name]}", flush=True)
    QUICK.write_text(json.dumps(points, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", type=Path)
    parser.add_argument("--without", default="", help="names of jobs, with commas")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        ship_quick_points()
        return
    parts = read_parts(asked.parts, [name for name in asked.without.split(",") if name])
    by_experiment: dict[str, list[dict[str, Any]]] = {}
    for stored in parts.values():
        by_experiment.setdefault(stored["results"]["experiment"], []).append(stored)
    for some in by_experiment.values():
        ship(some)
    refresh_claims()
    refresh_docs()


if __name__ == "__main__":
    main()
