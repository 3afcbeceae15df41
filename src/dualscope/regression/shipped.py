"""The results of full runs that come with the package, so that everybody can look at them without a GPU."""

from pathlib import Path

from dualscope.core.command_hints import called
from dualscope.core.errors import InputError

SHIPPED = Path(__file__).parent / "shipped_results"


def shipped_runs() -> dict[str, Path]:
    """experiment -> its run folder, of the full size."""
    found = {path.parent.name: path.parent for path in sorted(SHIPPED.glob("*/regression.parquet"))}
    if not found:
        raise InputError(f"this installation has no shipped regression results; run `{called('regression')}` instead")
    return found
