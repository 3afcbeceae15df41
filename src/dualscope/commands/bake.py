"""``dualscope bake``: demonstrations become a LoRA adapter."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dualscope.commands.shared_options import OFFLINE
from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from dualscope.baking.baked_adapter import BakedAdapter
    from dualscope.tasks import Task

OTHERS = 3  # generated tasks that drift is measured on where none is named


def bake(
    out: str = typer.Argument(..., metavar="OUT", help="A folder that does not exist yet."),
    model: str = typer.Option("embedded", "--model", "-m", help="embedded, a folder, a GGUF file, or a hub name."),
    task: str | None = typer.Option(None, "--task", "-t", help="A task's name or its YAML file."),
    demonstrations: Path | None = typer.Option(
        None,
        "--demonstrations",
        help="In place of a task: a table (csv, tsv, jsonl, parquet) with the columns text and label, or a text file "
        'with a line a demonstration, as in "a fine film => Positive".',
    ),
    queries_from: Path | None = typer.Option(
        None, "--queries-from", help="With --demonstrations: held-out examples to ask, in a file of the same kinds."
    ),
    template: str | None = typer.Option(
        None, help="With --demonstrations: what stands around a text, as in 'Review: {text} Sentiment:'."
    ),
    label: list[str] = typer.Option(
        [], "--label", help="With --demonstrations: a label word, in the classes' order. May be given several times."
    ),
    learner: str = typer.Option(
        "kv-distilled",
        "--learner",
        "-l",
        help="kv-distilled, gd-tuned, static-patch, gd, or another that changes weights.",
    ),
    shots: int | None = typer.Option(
        None,
        help="Demonstrations; if not given, 16 of a task, and all of a file with --queries-from (else half of it).",
    ),
    seed: int = typer.Option(0, help="Which draw of demonstrations."),
    queries: int = typer.Option(200, help="At most so many held-out queries."),
    rank: int | None = typer.Option(None, help="The adapter's rank at most; if not given, that of the change."),
    lr: float | None = typer.Option(None, help="The learning rate of a learner that needs one; if not given, chosen."),
    option: list[str] = typer.Option(
        [], "--option", help="A learner's option, as in fit=32. May be given several times."
    ),
    other: list[str] = typer.Option(
        [],
        "--other",
        help="A task that should not change; if none is given, generated ones. May be given several times.",
    ),
    ceiling: bool = typer.Option(
        True, "--ceiling/--no-ceiling", help="Fit kv-distilled too, to say what share of the possible is reached."
    ),
    data: Path | None = typer.Option(
        None, "--data", help="Read catalog tasks from DIR/<task>/<split>.jsonl, not the hub."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("float32", help="float32, float64, bfloat16, float16 or tf32."),
    offline: bool = OFFLINE,
) -> None:
    """Put demonstrations into a model's weights: a LoRA adapter for peft, with a card that says how faithful it is.

    dualscope bake my-adapter --task embedded-sst2 --shots 16

    dualscope bake my-adapter --demonstrations examples.csv --model ./my-model --learner gd-tuned --rank 8
    """
    from dualscope.baking.baked_adapter import bake as baked_by
    from dualscope.baking.baked_adapter import check_new
    from dualscope.core.folder import check_writable, local_path
    from dualscope.learners import LEARNERS
    from dualscope.models import Model
    from dualscope.studies.plugins import load_plugins

    target = local_path("OUT", out)
    check_new(target)
    check_writable(target.absolute().parent)
    load_plugins([])
    LEARNERS[learner]  # an unknown one is said before anything is loaded
    taught = _task(task, demonstrations, queries_from, template, label, data, offline)
    others = _others(other, taught.name, data, offline)
    loaded = Model.load(model, device=device, dtype=dtype, offline=offline)
    baked = baked_by(
        loaded,
        taught,
        learner,
        shots=_shots(shots, taught, demonstrations, queries_from),
        seed=seed,
        queries=queries,
        lr=lr,
        rank=rank,
        options=_options(option),
        others=others,
        ceiling=ceiling,
    )
    baked.save(target, model)
    _show(baked, out)


def _task(
    task: str | None,
    demonstrations: Path | None,
    queries_from: Path | None,
    template: str | None,
    labels: list[str],
    data: Path | None,
    offline: bool,
) -> "Task":
    from dualscope.baking.shown_examples import task_of_files
    from dualscope.tasks import Task

    if (task is None) == (demonstrations is None):
        raise InputError("give what to bake: --task NAME, or --demonstrations FILE, and not both")
    if demonstrations is not None:
        return task_of_files(demonstrations, queries_from, template, labels)
    for given, called in ((queries_from, "--queries-from"), (template, "--template"), (labels or None, "--label")):
        if given is not None:
            raise InputError(f"{called} belongs to --demonstrations; a task has its own")
    assert task is not None
    return Task.load(task, data=data, offline=offline)


def _shots(shots: int | None, task: "Task", demonstrations: Path | None, queries_from: Path | None) -> int:
    if shots is not None:
        return shots
    if demonstrations is None:
        return 16
    return len(task.train) if queries_from is not None else max(1, len(task.train) // 2)


def _others(named: list[str], own: str, data: Path | None, offline: bool) -> "list[Task]":
    from dualscope.tasks import Task, catalog_names

    if named:
        return [Task.load(name, data=data, offline=offline) for name in named]
    generated = (
        task for name in catalog_names() if name != own and (task := Task.load(name, offline=True)).is_generated
    )
    return [task for task, _ in zip(generated, range(OTHERS), strict=False)]


def _options(given: list[str]) -> dict[str, Any]:
    from dualscope.core.config_file import parsed_value

    found: dict[str, Any] = {}
    for text in given:
        name, equals, written = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--option {text}: expected NAME=VALUE, as in fit=32")
        found[name] = parsed_value(written, f"--option {name}")
    return found


def _show(baked: "BakedAdapter", out: str) -> None:
    from dualscope.baking.fidelity_card import SEEN, warning_of

    fidelity = baked.fidelity
    typer.echo(f"wrote {out}: {len(baked.layers)} layers, rank {baked.rank} at most, {fidelity.shots} demonstrations")
    typer.echo(f"on {fidelity.queries} held-out queries, without demonstrations in the prompt:")
    typer.echo(
        f"  right: {fidelity.accuracy_baked:.3f} (no demonstrations {fidelity.accuracy_zero_shot:.3f}, in the prompt "
        f"{fidelity.accuracy_in_context:.3f})"
    )
    typer.echo(f"  same answer as in the prompt: {fidelity.agreement:.3f} (unbaked {fidelity.agreement_zero_shot:.3f})")
    top = "" if fidelity.explained_by_ceiling is None else f" (kv-distilled {fidelity.explained_by_ceiling:.3f})"
    typer.echo(f"  explained of what the demonstrations do: {fidelity.explained:.3f}{top}")
    typer.echo(f"  tokens saved a query: {fidelity.tokens_saved}")
    for drift in baked.drifts:
        typer.echo(
            f"  {drift.task}: {drift.changed:.3f} of answers changed, right {drift.accuracy_before:.3f} -> "
            f"{drift.accuracy_after:.3f}"
        )
    if baked.lost > SEEN:
        typer.echo(f"  left out by the rank: {baked.lost:.1%} of the change's norm")
    for note in filter(None, (*baked.notes, warning_of(fidelity))):
        typer.echo(f"  note: {note}")
