"""The results of full runs that come with the package, so that everybody can look at them without a GPU."""

from collections.abc import Sequence
from pathlib import Path

from dualscope.core.errors import InputError
from dualscope.core.rows import ExperimentRow
from dualscope.regression.appearance import APPEARS

SHIPPED = Path(__file__).parent / "shipped_results"
QUICK = SHIPPED / "quick.json"
PARTED = ("classes", "conditions", "seeds", "arms", "sharing", "noises", "depths", "widths")
"""Settings in which the parts of an experiment may differ; the whole has all of theirs."""
POINT = ("panel", "series", "metric", "x_name", "x", "seed", "value")


def shipped_runs() -> dict[str, Path]:
    """experiment -> its run folder."""
    found = {path.parent.name: path.parent for path in sorted(SHIPPED.glob("*/regression.parquet"))}
    if not found:
        raise InputError(
            "this installation has no shipped regression results; run `dualscope regression` instead"
        )
    return found


def quick_point(rows: Sequence[ExperimentRow]) -> ExperimentRow:
    """Where its last training ended, or, where nothing is trained, the last number of a seed."""
    own = [row for row in rows if row["seed"] is not None and row["metric"] != APPEARS]
    trained = [row for row in own if row["x_name"] == "step"]
    return (trained or own)[-1]
