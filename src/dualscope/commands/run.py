"""dualscope run: compute a study, or what is missing of it, and say what came out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer import Option

from dualscope.commands.run_result import conclude, show_result
from dualscope.commands.shared_options import MANY, NONE, OFFLINE, OptionGroup, in_groups, resumable
from dualscope.core.errors import InputError, suggest
from dualscope.core.spec import CellSpec
from dualscope.models.loading.automatic_precision import on_cpu

if TYPE_CHECKING:
    from dualscope.studies.study import Study


# Where a run without a name goes: after what is run, and never into another study's folder.


SEVERAL = 3  # names; more are counted


def run_name(base: str, models: Sequence[str], tasks: Sequence[str]) -> str:
    """The study's or preset's name, then the models and tasks that were named on the command line.

    >>> run_name("quick", [], []), run_name("", ["models/my-model"], ["sst2", "mine.yaml"])
    ('quick', 'my-model-sst2-mine')
    >>> run_name("", ["small=models/checkpoint-10"], [])
    'small'
    """
    parts = [base, _named(models, "models"), _named(tasks, "tasks")]
    return re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part)).strip("-") or "run"


def _named(names: Sequence[str], what: str) -> str:
    if len(names) > SEVERAL:
        return f"{len(names)}-{what}"
    from dualscope.studies.paths import named_model

    found = [called or source.rstrip("/").rsplit("/", 1)[-1] for called, source in map(named_model, names)]
    return "-".join(re.sub(r"\.ya?ml$", "", name) for name in found)


def free_folder(name: str, study: Study, under: str = "runs") -> str:
    """The folder of that name, or the first numbered one that holds no other study."""
    place, number = f"{under}/{name}", 1
    while holds_another(place, study):
        number += 1
        place = f"{under}/{name}-{number}"
    return place


def holds_another(place: str, study: Study) -> bool:
    """Whether a folder holds a study, and not this one as it is kept: with full paths."""
    from dualscope.core.folder import Folder
    from dualscope.studies.paths import anchored
    from dualscope.studies.study import Study

    if "://" in place:
        return False
    kept = Study.build(anchored(study.model_dump(), Path.cwd())).dump()
    try:
        return Folder(place).read("study.yaml").decode() != kept
    except (OSError, ValueError):  # not UTF-8, or no name of a folder, which is said where it is made
        return False


class Studied(OptionGroup):
    panel = "What is studied"

    models: Annotated[
        list[str],
        Option(
            "--model",
            "-m",
            help="embedded, a folder or a GGUF file (NAME=FOLDER to name it), or a hub name (name@revision); in quotes "
            f"also several: 'x@step{{1000,4000}}', 'runs/x/checkpoint-*'. {MANY}",
        ),
    ] = NONE
    adapter: Annotated[str | None, Option(help="A folder with a LoRA adapter (peft) for the model.")] = None
    adapter_mode: Annotated[
        str | None, Option(help="merged (into the weights; if not given) or active (a path of its own beside them).")
    ] = None
    variants: Annotated[
        list[str], Option("--variant", help=f"trained, untrained, trained-embeddings, shuffled. {MANY}")
    ] = NONE
    tasks: Annotated[list[str], Option("--task", "-t", help=f"A task's name or its YAML file. {MANY}")] = NONE
    learners: Annotated[list[str], Option("--learner", "-l", help=f"A learner's name. {MANY}")] = NONE
    shots: Annotated[str | None, Option(help="Demonstrations: 32, or several: 4,8,16.")] = None
    seeds: Annotated[str | None, Option(help="3 means 0,1,2; 2,3,4 means exactly these.")] = None
    queries: Annotated[int | None, Option(help="At most so many queries a task.")] = None
    demo_labels: Annotated[str | None, Option(help="gold, flipped, random, abstract; or several: gold,flipped.")] = None
    chat: Annotated[
        bool, Option("--chat", help="Demonstrations as turns, through the tokenizer's own chat template.")
    ] = False
    corrupt: Annotated[str | None, Option(help="Whose demonstrations have the corrupted labels: both, icl or gd.")] = (
        None
    )
    interventions: Annotated[
        list[str],
        Option(
            "--intervention",
            help=f"Change what the demonstrations say and compare responses: relabel, flip-one, reorder. {MANY}",
        ),
    ] = NONE
    preset: Annotated[str | None, Option(help="What the study is based on: see `dualscope list presets`.")] = None


class HowMeasured(OptionGroup):
    panel = "How it is measured"

    lr: Annotated[
        str | None,
        Option(help="auto (plain gd's), own (each learner's), recorded (in the model card), or rates: 0.1,0.3."),
    ] = None
    option: Annotated[list[str], Option("--option", help=f"A learner's option, as in gd.epochs=3. {MANY}")] = NONE
    metrics: Annotated[list[str], Option("--metric", help=f"Only this metric; `default` is all usual ones. {MANY}")] = (
        NONE
    )
    dtype: Annotated[
        str | None,
        Option(
            help="auto (float64 for small models on a CPU, else float32), float32, float64, tf32, bfloat16, float16."
        ),
    ] = None
    plugins: Annotated[list[Path], Option("--plugin", help=f"A Python file with your learners and metrics. {MANY}")] = (
        NONE
    )
    isolate_plugins: Annotated[
        bool,
        Option(
            "--isolate-plugins",
            help="Run a plugin's code in processes of its own, one a learner; a model is then loaded for each.",
        ),
    ] = False
    per_head: Annotated[
        bool, Option("--per-head", help="Rows for every attention head, with its induction score and indirect effect.")
    ] = False


class WhereComputed(OptionGroup):
    panel = "Where it is computed"

    data: Annotated[Path | None, Option(help="Read catalog tasks from DIR/<task>/<split>.jsonl, not the hub.")] = None
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    engine: Annotated[str, Option(help="local, or ray (a cluster at RAY_ADDRESS, or this machine).")] = "local"
    jobs: Annotated[
        int | None,
        Option(min=1, max=1024, help="Worker processes, or Ray actors; as many as suit the models if not given."),
    ] = None
    shard: Annotated[str, Option(help="Only the i-th of n parts, for job arrays: 2/8.")] = "1/1"
    evict: Annotated[
        bool,
        Option(
            "--evict", help="Remove each model that this run fetched from the hub cache once all its cells are stored."
        ),
    ] = False


class Kept(OptionGroup):
    panel = "What is kept and shown"

    out: Annotated[
        str | None, Option(help="The run folder (or fsspec URL); if not given, runs/<named after what is run>.")
    ] = None
    save_traces: Annotated[bool, Option("--save-traces", help="Keep every cell's trace (safetensors).")] = False
    no_texts: Annotated[bool, Option("--no-texts", help="Do not keep the queries' texts, which the report shows.")] = (
        False
    )
    per_query: Annotated[bool, Option("--per-query", help="Keep each query's values of every layer.")] = False
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Compute nothing: say how many cells there are, and what time and memory they need."),
    ] = False
    no_report: Annotated[bool, Option("--no-report", help="Do not write report.html.")] = False
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Print every table, interval and note, and a line for every cell.")
    ] = False


@in_groups
def run(
    study: Annotated[
        Path | None, typer.Argument(metavar="STUDY.yaml", help="A study file; options win over it.")
    ] = None,
    *,
    studied: Studied,
    measured: HowMeasured,
    computed: WhereComputed,
    kept: Kept,
    offline: bool = OFFLINE,
) -> None:
    """Run a study, or what is missing of it. Without options: the preset `quick`.

    dualscope run
    dualscope run --model ./my-model --task sst2 --seeds 5
    dualscope run study.yaml --dry-run
    """
    from dualscope.studies.execute.progress import Reporter
    from dualscope.studies.execute.runner import Runner
    from dualscope.studies.plan import parse_shard
    from dualscope.studies.study import Study

    asked = {
        **{name: value for group in (studied, measured, computed, kept) for name, value in vars(group).items()},
        "shots": _numbers(studied.shots, "--shots"),
        "demo_labels": studied.demo_labels.split(",") if studied.demo_labels else None,
        "data": str(computed.data) if computed.data else None,
        "plugins": [str(file) for file in measured.plugins],
    }
    options = {name: asked[name] for name in Study.model_fields.keys() & asked if asked[name] not in (None, [], False)}
    if kept.no_texts:
        options["texts"] = False
    resolved = Study.resolve(options, study, studied.preset)
    if studied.corrupt is not None and set(resolved.demo_labels) == {"gold"}:
        raise InputError(
            f"--corrupt {studied.corrupt}: all labels of the demonstrations are the right ones; "
            "add --demo-labels flipped or random"
        )
    resolved = with_options(resolved, measured.option)
    data, device, out = computed.data, computed.device, kept.out
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data}: no such folder")
    if not all(re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", one) for one in device.split(",")):  # said once
        raise InputError(f"--device {device}: expected auto, cpu, cuda, cuda:N or mps, or several: cuda:0,cuda:1")
    if out is not None and not out.strip():
        raise InputError("--out: an empty name; give a folder for the run, or leave the option out")
    base = study.stem if study else studied.preset or ("" if studied.models or studied.tasks else "quick")
    place = out or free_folder(run_name(base, studied.models, studied.tasks), resolved)
    if out and holds_another(out, resolved):
        typer.echo(f"note: {out} holds another study: its cells stay, and this one's are added", err=True)
    with Reporter(quiet=kept.as_json, verbose=kept.verbose) as reporter:
        runner = Runner(
            resolved,
            place,
            device=device,
            offline=offline,
            engine=computed.engine,
            jobs=computed.jobs,
            shard=parse_shard(computed.shard),
            fetch=not kept.dry_run,
            evict=computed.evict,
            isolate_plugins=measured.isolate_plugins,
            tell=reporter.tell,
            begin=reporter.begin,
        )
        if kept.dry_run:
            show_plan(runner, kept.as_json, kept.verbose)
            return
        with resumable(place):
            result = runner.execute()
        _refuse_what_fails_alike(result)
        reporter.conclude()
        said = conclude(result, report=not kept.no_report)
    show_result(result, said, kept.as_json, kept.verbose)
    if not result.complete:
        raise typer.Exit(1)


def _refuse_what_fails_alike(result: Any) -> None:
    """A model, device, task or option that no learner can be computed with is bad input, and said once.

    Zero-shot and in-context learning are in every study, so a run in which they alone succeeded has no answer.
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


def with_options(study: Study, given: Sequence[str]) -> Study:
    """The study, its learners with these options; values as in a study file.

    >>> from dualscope import Study
    >>> study = Study.build({"tasks": ["sst2"], "learners": ["gd", "lcgd"]})
    >>> with_options(study, ["gd.epochs=3"]).learners[0].options
    {'epochs': 3}
    """
    from dualscope.core.canonical import canonical
    from dualscope.core.config_file import parsed_value

    entries = list(study.learners)
    for text in given:
        left, equals, written = text.partition("=")
        learner, dot, name = left.partition(".")
        if not (equals and dot and learner and name):
            raise InputError(f"--option {text}: expected LEARNER.NAME=VALUE, as in gd.epochs=3")
        if all(entry.learner != learner for entry in entries):
            known = [entry.learner for entry in entries]
            raise InputError(f"--option {text}: the study has no learner '{learner}': {suggest(learner, known)}")
        value = parsed_value(written, f"--option {left}")
        canonical({name: value})  # a date or an infinite number is no setting
        entries = [
            entry.model_copy(update={"options": {**entry.options, name: value}}) if entry.learner == learner else entry
            for entry in entries
        ]
    return study.model_copy(update={"learners": tuple(entries)}) if given else study


def show_plan(runner: Any, as_json: bool, verbose: bool = False) -> None:
    """How many cells each model and task has, and what they cost; with ``verbose`` or as JSON, cell by cell."""
    from dualscope.studies.choices import most_pieces
    from dualscope.studies.execute.cost import Estimator
    from dualscope.studies.execute.work import Work
    from dualscope.studies.provenance import episodes

    plan = runner.plan()
    episodes(plan, runner.resolver, {})  # what the run would refuse is refused now
    stored = runner.run.stored()
    device: Literal["cpu", "cuda"] = "cpu" if on_cpu(runner.setting.device) else "cuda"
    total = _memory_here(runner.setting.device)
    estimator = Estimator(runner.run, plan.cells, runner.resolver, device, total)
    memory = {cell.id: estimator.memory(cell) for cell in plan.cells}
    lines = [
        {
            "id": cell.id,
            "cell": str(cell),
            "stored": cell.id in stored,
            "seconds": estimator.seconds(cell),
            "bytes": found.total if (found := memory[cell.id]) else None,
            "memory": found.parts if found else None,
            "files": found.files if found else None,
        }
        for cell in plan.cells
    ]
    searches: list[dict[str, Any]] = [
        {"search": str(job), "pieces": most_pieces([job]), "seconds": estimator.choice_seconds(job)}
        for job in plan.choices
    ]
    later = runner.later(plan)
    if as_json:
        said = {
            "cells": lines,
            "choices": searches,
            "cells_after_choices": len(later),
            "notes": [*plan.asides, *plan.notes],
        }
        typer.echo(json.dumps(said, indent=1))
        return
    console = Console(highlight=False)
    if lines:
        console.print(_cell_by_cell(lines) if verbose else _by_task(plan.cells, lines))
    for note in [*plan.asides, *plan.notes] if verbose else plan.notes:
        console.print(f"note: {note}", markup=False)
    for search in searches:
        console.print(
            f"first: {search['search']}: up to {search['pieces']} pieces, {_about([search['seconds']])}", markup=False
        )
    if later:
        about = _about([estimator.seconds(cell) for cell in later])
        console.print(f"then {len(later)} cells with what is chosen, {about}")
    todo = [line for line in lines if not line["stored"]]
    about = _about([line["seconds"] for line in todo])
    console.print(f"{len(todo)} of {len(lines)} listed cells to do, {about}")
    undone = [*(cell for cell in plan.cells if cell.id not in stored), *later]
    needs = [need for cell in undone if (need := estimator.memory(cell))]
    if needs:
        largest = max(needs, key=lambda need: need.total)
        parts = ", ".join(f"{name} {_size(size)}" for name, size in largest.parts.items() if size)
        where = "on the GPU" if device == "cuda" else "a process"
        console.print(f"up to {_size(largest.total)} {where}: {parts}", markup=False)
    if files := max((need.files for need in needs), default=0):
        console.print(f"traces of up to {_size(files)} more are kept in files, in TMPDIR or else /var/tmp")
    works = [Work(episode, cells) for episode, cells in plan.episodes().items()]
    if (processes := runner.processes(works)) > 1:
        console.print(f"{processes} processes share the work, and each needs that memory")
    if lines and not verbose:
        console.print("cell by cell: --verbose", style="dim")


def _by_task(cells: Sequence[CellSpec], lines: Sequence[dict[str, Any]]) -> Table:
    """A line for each model, variant and task, however many cells these have."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell, line in zip(cells, lines, strict=True):
        model = cell.episode.model
        groups.setdefault((model.name, model.variant, cell.episode.task), []).append(line)
    table = Table(
        "model",
        "variant",
        "task",
        "cells",
        "stored",
        "about",
        "memory",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for names, own in groups.items():
        todo = [line["seconds"] for line in own if not line["stored"]]
        known = [seconds for seconds in todo if seconds is not None]
        about = _duration(sum(known) if len(known) == len(todo) else None)
        stored, size = len(own) - len(todo), max((line["bytes"] or 0 for line in own), default=0)
        table.add_row(*names, str(len(own)), str(stored), about, _size(size or None))
    return table


def _cell_by_cell(lines: Sequence[dict[str, Any]]) -> Table:
    table = Table("id", "cell", "state", "about", "memory")
    for line in lines:
        state = "stored" if line["stored"] else "to do"
        table.add_row(line["id"][:8], line["cell"], state, _duration(line["seconds"]), _size(line["bytes"]))
    return table


def _memory_here(device: str) -> int | None:
    """Bytes of the device that would compute; None where this machine has no such device."""
    if on_cpu(device):  # without torch
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    from dualscope.models.loading.device_and_precision import resolve_all, total_memory

    try:
        return total_memory(resolve_all(device)[0])
    except InputError:
        return None


def _about(seconds: Sequence[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    if len(known) < len(seconds):
        return "for how long is not known (a model is not here yet, or a learner leaves settings open)"
    return f"about {_duration(sum(known))}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**20:.0f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"
