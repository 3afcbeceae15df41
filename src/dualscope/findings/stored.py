"""The verdict on a run, kept as verdict.json so that a finished run can repeat it at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dualscope.core.canonical import fingerprint
from dualscope.core.spec import IN_CONTEXT, CellSpec
from dualscope.findings.answer import RULE
from dualscope.findings.evidence import Evidence
from dualscope.findings.verdict import verdict
from dualscope.studies.run_folder.storage import RunFolder

FILE = "verdict.json"


def stored_cells(run: RunFolder, cells: Sequence[CellSpec]) -> dict[str, CellSpec]:
    """Those of a study's cells that are there, by their ids."""
    stored = run.stored()
    return {cell.id: cell for cell in cells if cell.id in stored}


def verdicts(run: RunFolder, cells: Mapping[str, CellSpec], keep: bool = True) -> list[dict[str, Any]]:
    """For each model and setting (shots, labels): what it is, the sentences, and the answers in full.

    What is stored is taken where it is of the same cells; with ``keep`` what is reached anew is stored.
    """
    stamp = _stamp(cells)
    known = run.recall(FILE)
    if _is_whole(known, stamp):
        return list(known["verdicts"])
    by_model: dict[str, dict[str, CellSpec]] = {}
    for name, cell in cells.items():
        if _is_evidence(cell):
            by_model.setdefault(cell.episode.model.name, {})[name] = cell
    reached = []
    for own in by_model.values():  # a verdict is on one model: the tables of others need not be in memory
        pairs = [(cell, run.queries(name)) for name, cell in own.items()]
        reached += [
            (repr(setting), {"setting": setting.setting_columns, **verdict(evidence).to_dict()})
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


def _is_evidence(cell: CellSpec) -> bool:
    """Learners that are compared with something else than in-context learning answer another question."""
    return cell.reference in (None, IN_CONTEXT)
