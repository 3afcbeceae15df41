"""The verdict on a run, kept as verdict.json so that a finished run can repeat it at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dualscope.core.canonical import fingerprint
from dualscope.core.rows import CellColumns
from dualscope.core.spec import IN_CONTEXT, CellSpec
from dualscope.findings.evidence import Evidence
from dualscope.findings.rule import RULE
from dualscope.findings.verdict import verdict
from dualscope.studies.run_folder.storage import RunFolder

FILE = "verdict.json"


@dataclass(frozen=True)
class StoredCell:
    """A cell as its rows tell of it: findings need no study to be planned again."""

    id: str
    columns: CellColumns
    reference: str | None  # the label of what it was compared with

    @property
    def is_response(self) -> bool:
        """Whether it is about a learner's response to an intervention, and not about the change as a whole."""
        return self.columns["intervention"] is not None


def stored_cells(run: RunFolder, cells: Sequence[CellSpec]) -> list[StoredCell]:
    """Those of a study's cells that are there."""
    stored = run.stored()
    return [
        StoredCell(cell.id, cell.columns(None), None if cell.reference is None else cell.reference.label)
        for cell in cells
        if cell.id in stored
    ]


def verdicts(run: RunFolder, cells: Sequence[StoredCell], keep: bool = True) -> list[dict[str, Any]]:
    """For each model and setting (shots, labels): what it is, the sentences, and the answers in full.

    What is stored is taken where it is of the same cells; with ``keep`` what is reached anew is stored.
    """
    stamp = _stamp(cell.id for cell in cells)
    known = run.recall(FILE)
    if _is_whole(known, stamp):
        return list(known["verdicts"])
    by_model: dict[str, list[StoredCell]] = {}
    for cell in cells:
        if _is_evidence(cell):
            by_model.setdefault(str(cell.columns["model"]), []).append(cell)
    reached = []
    for own in by_model.values():  # a verdict is on one model: the tables of others need not be in memory
        pairs = [(cell.columns, run.queries(cell.id)) for cell in own]
        reached += [
            (repr(setting), {"setting": asdict(setting), **verdict(evidence).to_dict()})
            for setting, evidence in Evidence.collect(pairs).items()
        ]
    found = [answer for _, answer in sorted(reached, key=lambda pair: pair[0])]
    if keep:
        run.write_json(FILE, {"of": stamp, "verdicts": found})
    return found


def _is_whole(known: Mapping[str, Any], stamp: str) -> bool:
    """Whether a stored verdict is of these cells, and what it should be."""
    found = known.get("verdicts")
    fields = ("setting", "sentences", "headline")
    return (
        known.get("of") == stamp
        and isinstance(found, list)
        and all(isinstance(answer, dict) and all(name in answer for name in fields) for answer in found)
    )


def _stamp(cells: Iterable[str]) -> str:
    """What a stored verdict is of: these cells, and this rule."""
    return fingerprint([RULE, *sorted(cells)])


def _is_evidence(cell: StoredCell) -> bool:
    """Learners that are compared with something else than in-context learning answer another question."""
    return cell.reference in (None, IN_CONTEXT.label)
