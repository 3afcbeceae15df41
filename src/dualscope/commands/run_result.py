"""What ``dualscope run`` says at its end, for people or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from dualscope.core.errors import InputError
from dualscope.core.spec import EpisodeSpec

if TYPE_CHECKING:
    from dualscope.core.rows import SummaryRow  # which imports pyarrow

T = TypeVar("T")
WIDE = 110
FEW_NOTES = 3  # that are printed without --verbose
FEW_ASKED = 3  # answers that a next command is said to be for


@dataclass
class Said:
    """What follows from a run's cells."""

    rows: list[SummaryRow]
    responses: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    page: str | None


def conclude(result: Any, report: bool) -> Said:
    """Summaries, answers and the report, written to the run's folder."""
    from dualscope.findings.responses import response_verdicts
    from dualscope.findings.summary import summarise
    from dualscope.findings.verdict import stored_cells, verdicts
    from dualscope.studies.execute.work import Outcome, reason_for

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
    return Said(rows, responses, answers, page)


def show_result(result: Any, said: Said, as_json: bool, verbose: bool) -> None:
    """The answer, one small table, the next commands, and where the report is; everything else with ``verbose``."""
    failures = [{"id": f.key, "cell": f.about, "reason": f.reason} for f in result.failures]
    if as_json:
        content = {
            "run": str(result.run.folder),
            "report": said.page,
            "cells": len(result.cells),
            "computed": len(result.computed),
            "failures": failures,
            "notes": [*result.asides, *result.notes],
            "response": said.responses,
            "verdicts": said.answers,
            "summary": [{k: _plain(v) for k, v in row.items()} for row in said.rows],
        }
        typer.echo(json.dumps(content, indent=1))
        return
    # Into a file or a pipe tables go at a width that cuts nothing; a terminal says its own.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    _show_answer(console, said)
    if verbose:
        _show_all(console, said)
    _show_notes(console, [*result.asides, *result.notes] if verbose else result.notes, verbose)
    _show_failures(console, result, failures)
    _show_next(console, said)
    console.print(f"{len(result.cells)} cells, {len(result.computed)} computed now", markup=False, style="dim")
    console.print(f"run:    {result.run.folder}", markup=False, soft_wrap=True)
    if said.page:
        console.print(f"report: {said.page}", markup=False, soft_wrap=True)


def _show_answer(console: Console, said: Said) -> None:
    from dualscope.report.answer_table import answer_lines, answer_table, meanings

    judged = [verdict for verdict in said.responses if verdict["variant"] == "trained"]
    for found in judged or said.answers:
        setting = EpisodeSpec.of_row(found["setting"])
        console.print(f"[bold]{escape(setting.model.name)}[/bold], {escape(setting.in_words)}")
        console.print(found["headline"], markup=False)
    lines = answer_lines(said.responses, said.answers, said.rows)
    table = answer_table(lines)
    if table is not None:
        console.print(table)
        for meaning in meanings(lines):
            console.print(meaning, style="dim", markup=False)


def _show_all(console: Console, said: Said) -> None:
    """Every table with its intervals, and every sentence."""
    from dualscope.findings.ranking import sentences
    from dualscope.report.terminal import result_tables

    if said.rows:
        console.print(result_tables(said.rows))
    for found in said.responses:
        show_response(console, found)
    for answer in said.answers:
        setting = EpisodeSpec.of_row(answer["setting"])
        console.print(
            f"[bold]verdict[/bold] on {escape(setting.model.name)}, {escape(setting.in_words)}: "
            f"[bold]{escape(answer['headline'])}[/bold]"
        )
        for sentence in answer["sentences"]:
            console.print(f"  {sentence}", markup=False)
    for sentence in sentences(said.rows):
        console.print(sentence, markup=False)


def _show_notes(console: Console, notes: Sequence[str], verbose: bool) -> None:
    for note in notes if verbose else notes[:FEW_NOTES]:
        console.print(f"note: {note}", markup=False)
    if not verbose and len(notes) > FEW_NOTES:
        console.print(f"note: {len(notes) - FEW_NOTES} more with --verbose", markup=False)


def _show_failures(console: Console, result: Any, failures: Sequence[Mapping[str, str]]) -> None:
    alike: dict[str, list[str]] = {}
    for failure in failures:
        alike.setdefault(failure["reason"], []).append(failure["cell"])
    for reason, cells in alike.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        console.print(f"failed: {cells[0]}{more}: {reason}", markup=False)
    if failures:
        where = result.run.folder.path("failures")
        console.print(f"{len(failures)} failed ({where}); the same command tries them again", markup=False)


def _show_next(console: Console, said: Said) -> None:
    """Where there is no answer: the command that would give one."""
    from dualscope.core.command_hints import again
    from dualscope.findings.headline import next_steps
    from dualscope.findings.summary import ALL_TASKS

    tasks = {row["task"] for row in said.rows}
    for step in next_steps(said.responses, said.answers):
        more = f" and {len(step.asked) - FEW_ASKED} more" if len(step.asked) > FEW_ASKED else ""
        whole = tasks - {ALL_TASKS} <= set(step.tasks)
        options = step.options if whole else {**step.options, "--task": step.tasks}
        console.print(f"next ({'; '.join(step.asked[:FEW_ASKED])}{more}: {step.why}):", markup=False)
        console.print(f"  {again(options)}", markup=False, soft_wrap=True)


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
