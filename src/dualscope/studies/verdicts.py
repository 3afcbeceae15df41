"""The verdict on each model and task of a run, kept so that a finished run can repeat it at once."""

from __future__ import annotations

from typing import Any

from dualscope.studies.store import Run


def verdicts(run: Run) -> list[dict[str, Any]]:
    return []
