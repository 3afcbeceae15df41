"""The shipped regression results and the claims table of docs/regression.md, from `benchmarks.regression_full`'s parts.

python -m benchmarks.regression_ship PARTS.tar.gz...     # later files replace the jobs of earlier ones
python -m benchmarks.regression_ship                     # the table alone, from what is shipped
"""

import gzip
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from dualscope.regression import EXPERIMENTS, Results, save
from dualscope.regression.claims import claims_table
from dualscope.regression.shipped import SHIPPED

DOCS = Path(__file__).parents[1] / "docs" / "regression.md"
BEGIN, END = "<!-- claims: python -m benchmarks.regression_ship -->", "<!-- end of claims -->"
JOINED = ("classes", "conditions", "seeds", "arms", "sharing", "noises", "depths", "widths", "layers")


def read_parts(files: list[Path]) -> dict[str, dict[str, Any]]:
    """job -> what it stored; the last file that has it wins."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        with tarfile.open(file) as whole:
            for member in whole.getmembers():
                content = whole.extractfile(member) if member.name.endswith(".json.gz") else None
                if content is not None:
                    stored = json.loads(gzip.decompress(content.read()))
                    found[stored["job"]] = stored
    return found


def ship(parts: list[dict[str, Any]]) -> None:
    """All parts of one experiment as one run folder in the package."""
    results = Results.joined([Results.from_dict(part["results"]) for part in parts])
    kind = EXPERIMENTS[results.experiment]
    seeds = sorted({seed for part in parts for seed in part["settings"]["seeds"]})
    first = parts[0]["settings"]
    common = {
        name: value
        for name, value in first.items()
        if name not in (*JOINED, "minutes") and all(part["settings"].get(name) == value for part in parts)
    }
    experiment = kind.full(**{**common, "seeds": seeds})
    experiment.conclude(results)
    told = ("job", "seconds", "machine", "date", "python", "settings")
    about = {
        "machine": ", ".join(sorted({part["machine"] for part in parts})),
        "date": max(part["date"] for part in parts),
        "parts": [{name: part[name] for name in told} for part in parts],
        "packages": {},
        "git": None,
    }
    seconds = max(part["seconds"] for part in parts)
    save(results, experiment, SHIPPED / results.experiment, seconds, about=about)
    held = sum(check.holds for check in results.checks)
    print(f"{results.experiment}: {len(results.rows)} rows, {held} of {len(results.checks)} checks hold")


def refresh_docs() -> None:
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(f"{before}{BEGIN}\n{claims_table()}\n{END}{after}")


def main() -> None:
    parts = read_parts([Path(name) for name in sys.argv[1:]])
    by_experiment: dict[str, list[dict[str, Any]]] = {}
    for stored in parts.values():
        by_experiment.setdefault(stored["results"]["experiment"], []).append(stored)
    for some in by_experiment.values():
        ship(some)
    refresh_docs()


if __name__ == "__main__":
    main()
