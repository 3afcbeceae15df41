"""Regression experiments at sizes that a CPU trains within minutes, shipped beside the full ones.

python -m benchmarks.regression_small newton akyurek   # stopped, it goes on from its checkpoint
python -m benchmarks.regression_ship                   # then the tables of docs/regression.md anew
"""

import argparse
import platform
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dualscope.regression import EXPERIMENTS, save
from dualscope.regression.shipped import SMALL

SIZES: dict[str, dict[str, Any]] = {
    "newton": {"batch": 32, "conditions": (100.0,)},
    "akyurek": {"batch": 32, "depths": (), "widths": ()},
}
"""What differs from an experiment's own defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", choices=list(SIZES))
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/regression-small"))
    asked = parser.parse_args()
    for name in asked.experiments:
        experiment = EXPERIMENTS[name](**SIZES[name])
        place = asked.checkpoints / name
        began = time.monotonic()
        results = experiment.run(checkpoints=place)
        about = {
            "size": "smaller size",
            "machine": f"{platform.machine()} CPU",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "platform": "",
            "git": None,
        }
        save(results, experiment, SMALL / name, time.monotonic() - began, about=about)
        shutil.rmtree(place, ignore_errors=True)
        for check in results.checks:
            print("holds" if check.holds else "FAILS", check.claim, "|", check.found)
        print(f"{name}: {time.monotonic() - began:.0f} s {results.notes}", flush=True)


if __name__ == "__main__":
    main()
