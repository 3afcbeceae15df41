"""The verdict on a run, kept as verdict.json so that a finished run can repeat it at once. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import RULE, verdict
from dualscope.studies.cell import Cell, fingerprint
from dualscope.studies.run_folder.storage import Run

FILE = "verdict.json"


def verdicts(run: Run, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """For each model and setting (shots, labels): what it is, the sentences, and the answers in full."""
    stored = run.stored()
    ready = [cell for cell in cells if cell.id in stored]
    stamp = stamp_of(cell.id for cell in ready)
    known = run.recall(FILE)
    if not is_whole(known, stamp):
        read = [(cell.columns(None), run.queries(cell.id)) for cell in ready if _is_evidence(cell)]
        found = [
            {"setting": asdict(setting), **verdict(evidence).to_dict()}
            for setting, evidence in Evidence.collect(read).items()
        ]
        known = {"of": stamp, "verdicts": found}
        run.write_json(FILE, known)
    return list(known["verdicts"])


def is_whole(known: Mapping[str, Any], stamp: str) -> bool:
    """Whether a stored verdict is of these cells, and what it should be."""
    found = known.get("verdicts")
    fields = ("setting", "sentences")
    return (
        known.get("of") == stamp
        and isinstance(found, list)
        and all(isinstance(answer, dict) and all(name in answer for name in fields) for answer in found)
    )


def stamp_of(cells: Iterable[str]) -> str:
    """What a stored verdict is of: these cells, and this rule."""
    return fingerprint([RULE, *sorted(cells)])


def _is_evidence(cell: Cell) -> bool:
    """Learners that are compared with something else than in-context learning answer another question."""
    return cell.reference is None or cell.reference.learner == "in-context"
