"""What ``dualscope run`` says at its end, for people or as JSON."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from dualscope.core.errors import InputError
from dualscope.core.spec import EpisodeSpec

T = TypeVar("T")
WIDE = 110


def show_result(result: Any, as_json: bool, report: bool) -> None:
    """Tables, verdicts, notes, failures, and where the run and its report are."""
    from dualscope.findings.ranking import sentences
    from dualscope.findings.responses import response_verdicts
    from dualscope.findings.stored import stored_cells, verdicts
    from dualscope.findings.summary import summarise
    from dualscope.report.terminal import result_tables
    from dualscope.studies.execute.outcome import Outcome, reason_for

    lost: list[Exception] = []
    every = stored_cells(result.run, result.whole)
    stored = {name: cell for name, cell in every.items() if not cell.is_response}
    responses = _kept(lambda keep: response_verdicts(result.run, every, keep), lost)
    rows = _kept(lambda keep: summarise(result.run, stored, keep), lost)
    answers = _kept(lambda keep: verdicts(result.run, stored, keep), lost)
    page = _kept(lambda keep: _report(result) if keep and report and rows else None, lost)
    for reason in dict.fromkeys(reason_for(error) for error in lost):
        result.failures.append(Outcome("findings", "what is said of the run", "failed", reason=reason))
    result.run.folder.sweep(stale=math.inf)
    result.notes += [*_cut_short(result), *_unclipped(rows)]
    failures = [{"id": f.key, "cell": f.about, "reason": f.reason} for f in result.failures]
    if as_json:
        content = {
            "run": str(result.run.folder),
            "report": page,
            "cells": len(result.cells),
            "computed": len(result.computed),
            "failures": failures,
            "notes": result.notes,
            "response": responses,
            "verdicts": answers,
            "summary": [{k: _plain(v) for k, v in row.items()} for row in rows],
        }
        typer.echo(json.dumps(content, indent=1))
        return
    # Into a file or a pipe tables go at a width that cuts nothing; a terminal says its own.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    if rows:
        console.print(result_tables(rows))
    for found in responses:
        show_response(console, found)
    for answer in answers:
        setting = EpisodeSpec.of_row(answer["setting"])
        console.print(
            f"[bold]verdict[/bold] on {escape(setting.model.name)}, {escape(setting.in_words)}: "
            f"[bold]{escape(answer['headline'])}[/bold]"
        )
        for sentence in answer["sentences"]:
            console.print(f"  {sentence}", markup=False)
    for sentence in sentences(rows):
        console.print(sentence, markup=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    alike: dict[str, list[str]] = {}
    for failure in failures:
        alike.setdefault(failure["reason"], []).append(failure["cell"])
    for reason, cells in alike.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        console.print(f"failed: {cells[0]}{more}: {reason}", markup=False)
    if failures:
        where = result.run.folder.path("failures")
        console.print(f"{len(failures)} failed ({where}); the same command tries them again", markup=False)
    console.print(f"{len(result.cells)} cells, {len(result.computed)} computed now", markup=False)
    console.print(f"run:    {result.run.folder}", markup=False, soft_wrap=True)
    if page:
        console.print(f"report: {page}", markup=False, soft_wrap=True)


def show_response(console: Console, verdict: Mapping[str, Any]) -> None:
    """The answer in words, and a small table: every hypothesis on every task, beside its scale."""
    from rich.table import Table

    setting = EpisodeSpec.of_row(verdict["setting"])
    variant = "" if verdict["variant"] == "trained" else f", {verdict['variant']}"
    console.print(
        f"[bold]{escape(setting.model.name)}[/bold]{variant}, {escape(setting.in_words)}: "
        f"[bold]{escape(verdict['headline'])}[/bold]"
    )
    table = Table("task", "learner", "part", "answer", "response", "if it were", "ICL reordered", "seeds", box=None)
    for answer in verdict["answers"]:
        value = answer["value"]
        table.add_row(
            answer["task"],
            answer["learner"],
            answer["where"],
            answer["answer"],
            f"{_two(value['mean'])} [{_two(value['low'])}, {_two(value['high'])}]",
            _two(answer["target"]),
            _two(answer["reliability"]),
            " ".join(_two(one) for one in value["seeds"]),
        )
    console.print(table)


def _two(value: float | None) -> str:
    from dualscope.findings.answer import short

    return "–" if value is None else short(value)


def _kept(make: Callable[[bool], T], lost: list[Exception]) -> T:
    """What the run says, written to its folder; where that cannot be, it is still said, and the run has failed."""
    try:
        return make(True)
    except (OSError, InputError) as error:
        lost.append(error)
        return make(False)


def _cut_short(result: Any) -> list[str]:
    """Where a context had no room for all the demonstrations that were asked for."""
    from dualscope.core.spec import IN_CONTEXT

    found: dict[tuple[str, str, int], list[int]] = {}
    stored = result.run.stored()
    for cell in result.cells:
        episode = cell.episode
        if cell.learning == IN_CONTEXT and cell.id in stored:
            used = result.run.rows([cell.id])["shots_used"]
            if len(used) and used[0].as_py() < episode.shots:
                key = (episode.model.name, episode.task, episode.shots)
                found.setdefault(key, []).append(used[0].as_py())
    return [
        f"{model}, {task}: {min(used)}{f' to {max(used)}' if len(set(used)) > 1 else ''} of {shots} demonstrations "
        "fit in the context"
        for (model, task, shots), used in found.items()
    ]


def _unclipped(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A clip that never bites is no clip: its learner is the plain one under another name."""
    from dualscope.core.spec import LearnerSpec
    from dualscope.findings.summary import ALL_TASKS

    tasks: dict[str, list[str]] = {}
    for row in rows:
        if row["metric"] == "clipped_steps" and row["value"] == 0 and row["task"] != ALL_TASKS:
            name = LearnerSpec.of_row(row).label
            tasks.setdefault(f"{name}, {row['variant']}", []).append(f"{row['task']} (lr {row['lr']:g})")
    return [f"{name}: no step was clipped on {', '.join(found)}" for name, found in tasks.items()]


def _report(result: Any) -> str | None:
    """Write report.html where there is something new to say."""
    folder = result.run.folder
    target = str(folder.path("report.html"))
    if "://" in target:
        return None  # a report of a remote run is made by `dualscope report`
    if result.computed or not folder.exists("report.html"):
        from dualscope.report import write_report

        write_report([Path(str(folder))], Path(target))
    return target


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
