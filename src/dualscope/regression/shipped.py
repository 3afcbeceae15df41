"""The results of full runs that come with the package, so that everybody can look at them without a GPU."""

from pathlib import Path

from dualscope.core.called import called
from dualscope.core.errors import InputError

SHIPPED = Path(__file__).parent / "shipped_results"
SMALL = SHIPPED / "small"  # smaller sizes, on a CPU


def shipped_runs() -> dict[str, Path]:
    """experiment -> its run folder, of the full size."""
    found = _runs_in(SHIPPED)
    if not found:
        raise InputError(
            f"this installation has no shipped regression results; run `{called('regression')}` instead"
        )
    return found


def small_runs() -> dict[str, Path]:
    """experiment -> its run folder, of a smaller size: what a CPU can train until it comes to rest."""
    return _runs_in(SMALL)


def _runs_in(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/regression.parquet"))}
