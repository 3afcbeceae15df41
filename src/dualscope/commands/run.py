"""dualscope run: compute a study, or what is missing of it, and say what came out."""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from dualscope.commands.offline import OFFLINE
from dualscope.commands.resumable import resumable
from dualscope.commands.run_folder_name import free_folder, holds_another, run_name
from dualscope.core.errors import InputError

T = TypeVar("T")
MANY = "May be given several times."
WIDE = 110


def run(
    study: Path | None = typer.Argument(
        None, metavar="STUDY.yaml", help="A study file; options win over it."
    ),
    model: list[str] = typer.Option(
        [],
        "--model",
        "-m",
        help="embedded, a folder, or a hub name (name@revision); in quotes also several: 'x@step{1000,4000}', "
        f"'runs/x/checkpoint-*'. {MANY}",
    ),
    adapter: str | None = typer.Option(
        None, help="A folder with a LoRA adapter (peft), which is merged into the model's weights."
    ),
    variant: list[str] = typer.Option(
        [], "--variant", help=f"trained, untrained, trained-embeddings, shuffled. {MANY}"
    ),
    task: list[str] = typer.Option([], "--task", "-t", help=f"A task's name or its YAML file. {MANY}"),
    learner: list[str] = typer.Option([], "--learner", "-l", help=f"A learner's name. {MANY}"),
    shots: str | None = typer.Option(None, help="Demonstrations: 32, or several: 4,8,16."),
    seeds: str | None = typer.Option(None, help="3 means 0,1,2; 2,3,4 means exactly these."),
    lr: str | None = typer.Option(None, help="auto, recorded (in the model card), or rates: 0.1,0.3."),
    queries: int | None = typer.Option(None, help="At most so many queries a task."),
    demo_labels: str | None = typer.Option(None, help="gold, flipped, random; or several: gold,flipped."),
    chat: bool = typer.Option(
        False, "--chat", help="Demonstrations as turns, through the tokenizer's own chat template."
    ),
    corrupt: str | None = typer.Option(
        None, help="Whose demonstrations have the corrupted labels: both, icl or gd."
    ),
    option: list[str] = typer.Option([], "--option", help=f"A learner's option, as in gd.epochs=3. {MANY}"),
    metric: list[str] = typer.Option(
        [], "--metric", help=f"Only this metric; `default` is all usual ones. {MANY}"
    ),
    preset: str | None = typer.Option(None, help="What the study is based on: see `dualscope list presets`."),
    data: Path | None = typer.Option(
        None, help="Read catalog tasks from DIR/<task>/<split>.jsonl, not the hub."
    ),
    out: str | None = typer.Option(
        None, help="The run folder (or fsspec URL); if not given, runs/<named after what is run>."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:1, mps."),
    dtype: str | None = typer.Option(
        None,
        help="auto (float64 for small models on a CPU, else float32), float32, float64, tf32, bfloat16, float16.",
    ),
    engine: str = typer.Option("local", help="local, or ray (a cluster at RAY_ADDRESS, or this machine)."),
    jobs: int | None = typer.Option(
        None,
        min=1,
        max=1024,
        help="Worker processes, or Ray actors; as many as suit the models if not given.",
    ),
    shard: str = typer.Option("1/1", help="Only the i-th of n parts, for job arrays: 2/8."),
    plugin: list[Path] = typer.Option(
        [], "--plugin", help=f"A Python file with your learners and metrics. {MANY}"
    ),
    save_traces: bool = typer.Option(False, "--save-traces", help="Keep every cell's trace (safetensors)."),
    no_texts: bool = typer.Option(
        False, "--no-texts", help="Do not keep the queries' texts, which the report shows."
    ),
    per_query: bool = typer.Option(False, "--per-query", help="Keep each query's values of every layer."),
    per_head: bool = typer.Option(False, "--per-head", help="Rows for every attention head."),
    offline: bool = OFFLINE,
    dry_run: bool = typer.Option(False, "--dry-run", help="List the cells with estimated time and memory."),
    no_report: bool = typer.Option(False, "--no-report", help="Do not write report.html."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run a study, or what is missing of it. Without options: the preset `quick`."""
    from dualscope.studies.config import Study
    from dualscope.studies.execute.progress import Reporter
    from dualscope.studies.execute.runner import Runner, parse_shard
    from dualscope.studies.learner_options import with_options
    from dualscope.studies.patterns import matching

    options: dict[str, Any] = {
        "models": list(dict.fromkeys(name for one in model for name in matching(one))),
        "adapter": adapter,
        "variants": variant,
        "tasks": task,
        "learners": learner,
        "shots": _numbers(shots, "--shots"),
        "seeds": seeds,
        "lr": lr,
        "queries": queries,
        "corrupt": corrupt,
        "metrics": metric,
        "demo_labels": demo_labels.split(",") if demo_labels else None,
        "data": str(data) if data else None,
        "dtype": dtype,
        "chat": chat or None,
        "plugins": [str(file) for file in plugin],
        "save_traces": save_traces or None,
        "texts": False if no_texts else None,
        "per_query": per_query or None,
        "per_head": per_head or None,
    }
    resolved = Study.resolve({k: v for k, v in options.items() if v not in (None, [])}, study, preset)
    if corrupt is not None and set(resolved.demo_labels) == {"gold"}:
        raise InputError(
            f"--corrupt {corrupt}: all labels of the demonstrations are the right ones; "
            "add --demo-labels flipped or random"
        )
    resolved = with_options(resolved, option)
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data}: no such folder")
    if not all(re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", one) for one in device.split(",")):  # said once
        raise InputError(
            f"--device {device}: expected auto, cpu, cuda, cuda:N or mps, or several: cuda:0,cuda:1"
        )
    if out is not None and not out.strip():
        raise InputError("--out: an empty name; give a folder for the run, or leave the option out")
    base = study.stem if study else preset or ("" if model or task else "quick")
    place = out or free_folder(run_name(base, model, task), resolved)
    if out and holds_another(out, resolved):
        typer.echo(f"note: {out} holds another study: its cells stay, and this one's are added", err=True)
    with Reporter(quiet=as_json) as reporter:
        runner = Runner(
            resolved,
            place,
            device=device,
            offline=offline,
            engine=engine,
            jobs=jobs,
            shard=parse_shard(shard),
            fetch=not dry_run,
            tell=reporter.tell,
            begin=reporter.begin,
        )
        if dry_run:
            _show_plan(runner, as_json)
            return
        with resumable(place):
            result = runner.execute()
    _refuse_what_fails_alike(result)
    _show_result(result, as_json, report=not no_report)
    if not result.complete:
        raise typer.Exit(1)


def _refuse_what_fails_alike(result: Any) -> None:
    """A model, device, task or option that no learner can be computed with is bad input, and said once.

    Zero-shot and in-context learning are in every study: that they alone went well helps nobody.
    """
    reasons = {failure.reason for failure in result.failures}
    mendable = len(reasons) == 1 and all(failure.bad_input for failure in result.failures)
    always = {cell.id for cell in result.cells if cell.role in ("baseline", "reference")}
    kept = result.run.stored() & {cell.id for cell in result.cells}
    if not always & {failure.key for failure in result.failures}:
        kept -= always
    if mendable and not kept:
        raise InputError(reasons.pop())


def _numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        raise InputError(f"{option} {text}: expected whole numbers, as in 32 or 4,8,16")
    return [int(part) for part in parts]


def _show_plan(runner: Any, as_json: bool) -> None:
    from rich.table import Table

    from dualscope.models.automatic import on_cpu
    from dualscope.studies.execute.estimate import Estimator
    from dualscope.studies.provenance import episodes

    plan = runner.plan()
    episodes(plan, runner.resolver, {})  # what the run would refuse is refused now
    stored = runner.run.stored()
    device: Literal["cpu", "cuda"] = "cpu" if on_cpu(runner.setting.device) else "cuda"
    estimator = Estimator(runner.run, plan.cells, runner.resolver, device)
    memory = {cell.id: estimator.memory(cell) for cell in plan.cells}
    lines = [
        {
            "id": cell.id,
            "cell": str(cell),
            "stored": cell.id in stored,
            "seconds": estimator.seconds(cell),
            "bytes": found.total if (found := memory[cell.id]) else None,
            "memory": found.parts if found else None,
        }
        for cell in plan.cells
    ]
    if as_json:
        rates = [str(job) for job in plan.rates]
        typer.echo(json.dumps({"cells": lines, "rates": rates, "notes": plan.notes}, indent=1))
        return
    table = Table("id", "cell", "state", "about", "memory")
    for line in lines:
        state = "stored" if line["stored"] else "to do"
        seconds = "?" if line["seconds"] is None else _duration(line["seconds"])
        table.add_row(line["id"][:8], line["cell"], state, seconds, _size(line["bytes"]))
    console = Console(highlight=False)
    console.print(table)
    todo = [line for line in lines if not line["stored"]]
    total = sum(line["seconds"] or 0.0 for line in todo)
    largest = max(todo, key=lambda line: line["bytes"] or 0, default=None)
    peak = largest["bytes"] or 0 if largest else 0
    console.print(f"{len(todo)} of {len(lines)} cells to do, about {_duration(total)}, up to {_size(peak)}")
    if largest and largest["memory"]:
        parts = ", ".join(f"{name} {_size(size)}" for name, size in largest["memory"].items() if size)
        where = "on the GPU" if device == "cuda" else "a process"
        console.print(f"the largest, {where}: {parts}", markup=False)
    for job in plan.rates:
        console.print(f"first: {job} (its cells are not listed)", markup=False)
    for note in plan.notes:
        console.print(note, markup=False)


def _show_result(result: Any, as_json: bool, report: bool) -> None:
    from dualscope.findings.explained import sentences
    from dualscope.findings.stored import stored_cells, verdicts
    from dualscope.findings.summary import summarise
    from dualscope.report.terminal import result_tables
    from dualscope.studies.execute.outcome import Outcome, reason_for

    lost: list[Exception] = []
    stored = stored_cells(result.run, result.whole)
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
            "verdicts": answers,
            "summary": [{k: _plain(v) for k, v in row.items()} for row in rows],
        }
        typer.echo(json.dumps(content, indent=1))
        return
    # Into a file or a pipe tables go at a width that cuts nothing; a terminal says its own.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    if rows:
        console.print(result_tables(rows))
    for answer in answers:
        setting = answer["setting"]
        labels = "" if setting["demo_labels"] == "gold" else f", {setting['demo_labels']} labels"
        labels += "" if setting["queries_from"] is None else f", asked about {setting['queries_from']}"
        console.print(
            f"[bold]verdict[/bold] on {escape(setting['model'])}, {setting['shots']} shots{labels}: "
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


def _kept(make: Callable[[bool], T], lost: list[Exception]) -> T:
    """What the run says, written to its folder; where that cannot be, it is still said, and the run has failed."""
    try:
        return make(True)
    except (OSError, InputError) as error:
        lost.append(error)
        return make(False)


def _cut_short(result: Any) -> list[str]:
    """Where a context had no room for all the demonstrations that were asked for."""
    from dualscope.core.learning import IN_CONTEXT

    found: dict[tuple[str, str, int], list[int]] = {}
    stored = result.run.stored()
    for cell in result.cells:
        sitting = cell.sitting
        if cell.learning == IN_CONTEXT and cell.id in stored:
            used = result.run.rows([cell.id])["shots_used"]
            if len(used) and used[0].as_py() < sitting.shots:
                key = (sitting.place.name, sitting.task, sitting.shots)
                found.setdefault(key, []).append(used[0].as_py())
    return [
        f"{model}, {task}: {min(used)}{f' to {max(used)}' if len(set(used)) > 1 else ''} of {shots} demonstrations "
        "fit in the context"
        for (model, task, shots), used in found.items()
    ]


def _unclipped(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A clip that never bites is no clip: its learner is the plain one under another name."""
    from dualscope.core.rows import learning_of
    from dualscope.findings.summary import ALL_TASKS

    tasks: dict[str, list[str]] = {}
    for row in rows:
        if row["metric"] == "clipped_steps" and row["value"] == 0 and row["task"] != ALL_TASKS:
            name = learning_of(row).label
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
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**20:.0f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"
