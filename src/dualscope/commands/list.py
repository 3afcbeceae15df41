"""dualscope list: the names that other commands accept, with a line about each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dualscope.tasks.task import Task


class Kind(StrEnum):
    models = "models"
    variants = "variants"
    tasks = "tasks"
    learners = "learners"
    interventions = "interventions"
    metrics = "metrics"
    presets = "presets"
    figures = "figures"


def list_names(
    kind: Kind = typer.Argument(..., help="What to list."),
    plugin: list[Path] = typer.Option(
        [], "--plugin", help="A Python file with your learners and metrics. May be given several times."
    ),
    statistics: bool = typer.Option(
        False, "--statistics", help="With tasks: sizes, classes and lengths of every data set that is here."
    ),
    data: Path | None = typer.Option(
        None, help="With --statistics: read catalog tasks from DIR/<task>/<split>.jsonl, not the hub."
    ),
    offline: bool = typer.Option(False, "--offline", help="With --statistics: fetch nothing."),
) -> None:
    """List the models, variants, tasks, learners, interventions, metrics, presets or figures there are.

    Learners, interventions and metrics of installed plugins are among them; those of a file with --plugin FILE.py.

    dualscope list tasks --statistics --data DIR
    """
    from dualscope.core.command_hints import called
    from dualscope.core.errors import InputError

    if statistics:
        if kind is not Kind.tasks:
            again = called("list", "tasks", "--statistics")
            raise InputError(f"--statistics is about tasks, not {kind}: {again}")
        if data is not None and not data.is_dir():
            raise InputError(f"--data {data}: no such folder")
        _show_statistics(data, offline)
        return
    if data is not None:
        again = called("list", "tasks", "--statistics", "--data", "DIR")
        raise InputError(f"--data is read for --statistics: {again}")
    if plugin or kind in (Kind.learners, Kind.interventions, Kind.metrics):
        from dualscope.studies.plugins import load_plugins

        load_plugins([str(file) for file in plugin])
    heads, rows = _ROWS[kind]()
    _show(heads, rows)


def _show(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a header: wrapped on a terminal, a line a row elsewhere."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads[:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1], no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*map(Text, row))
    wide = None if sys.stdout.isatty() else sum(max(map(len, column)) + 4 for column in zip(heads, *rows, strict=True))
    Console(highlight=False, width=wide).print(table)


Listed = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The heads of the columns, and the rows."""


def _models() -> Listed:
    from dualscope.models.architecture.families import BY_STRUCTURE, FAMILIES

    return ("model", "meaning"), [
        ("embedded", "the small model that comes with dualscope"),
        ("FOLDER", "a local model: config.json, safetensors and tokenizer files"),
        ("OWNER/NAME[@REVISION]", "a causal language model on the hub"),
        *((name, "an architecture that is supported") for name in sorted({*FAMILIES, *BY_STRUCTURE})),
    ]


def _variants() -> Listed:
    from dualscope.models.loading.model_variants import ABOUT

    return ("variant", "meaning"), list(ABOUT.items())


def _tasks() -> Listed:
    from dualscope.core.config_file import read_config
    from dualscope.tasks.catalog import catalog_folder, catalog_names
    from dualscope.tasks.task_config import TaskConfig

    rows: list[tuple[str, ...]] = []
    for name in catalog_names():
        task = read_config(catalog_folder() / f"{name}.yaml", TaskConfig)
        rows.append((name, str(task.source), ", ".join(task.labels)))
    return ("task", "data", "label words"), rows


def _show_statistics(data: Path | None, offline: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from dualscope.core.errors import InputError
    from dualscope.tasks import Task
    from dualscope.tasks.catalog import catalog_names

    table = Table(box=None, pad_edge=False)
    for name in ("task", "train", "evaluation", "classes", "uniform", "majority", "words", "longest"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    missing: dict[str, str] = {}
    for name in catalog_names():
        try:
            found = statistics_of(Task.load(name, data=data, offline=offline))
        except InputError as error:
            missing[name] = str(error).splitlines()[0]
            continue
        table.add_row(
            name,
            f"{found.train:,}",
            f"{found.evaluation:,}",
            str(found.classes),
            f"{found.uniform:.2f}",
            f"{found.majority:.2f}",
            f"{found.words:.0f}",
            str(found.longest),
        )
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table)
    console.print(
        "uniform, majority: the accuracy of a guess and of the commonest class, over the evaluation split; words: of a "
        "prompt, mean and longest",
        style="dim",
    )
    for name, why in missing.items():
        typer.echo(f"not here: {name}: {why}")


def _learners() -> Listed:
    from dualscope.learners import LEARNERS

    rows = [(name, LEARNERS[name].role, _first_line(LEARNERS[name].__doc__)) for name in LEARNERS]
    return ("learner", "role", "meaning"), list(rows)


def _interventions() -> Listed:
    from dualscope.learners.interventions import INTERVENTIONS

    rows = [(name, _first_line(INTERVENTIONS[name].__doc__)) for name in INTERVENTIONS]
    return ("intervention", "what it changes"), list(rows)


def _metrics() -> Listed:
    from dualscope.metrics import METRICS

    rows = [(name, "by default" if METRICS[name].default else "on request", METRICS[name].about) for name in METRICS]
    return ("metric", "measured", "what it says"), list(rows)


def _presets() -> Listed:
    from dualscope.core.config_file import read_yaml
    from dualscope.studies.study import PRESETS

    rows = [(path.stem, str(read_yaml(path)[0].get("about", ""))) for path in sorted(PRESETS.glob("*.yaml"))]
    return ("preset", "what it studies"), list(rows)


def _figures() -> Listed:
    from dualscope.report.charts.figures import FIGURES

    return ("figure", "what it shows"), [(name, about) for name, (_, about) in FIGURES.items()]


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if (text or "").strip() else ""


_ROWS = {
    Kind.models: _models,
    Kind.variants: _variants,
    Kind.tasks: _tasks,
    Kind.learners: _learners,
    Kind.interventions: _interventions,
    Kind.metrics: _metrics,
    Kind.presets: _presets,
    Kind.figures: _figures,
}


# What a data set is like, in a few numbers.


@dataclass(frozen=True)
class Statistics:
    """Sizes of both splits, and of the evaluation split what guessing is worth and how long its prompts are."""

    train: int
    evaluation: int
    classes: int
    majority: float  # the share of the commonest class
    words: float  # of a prompt, on average
    longest: int  # words

    @property
    def uniform(self) -> float:
        """The accuracy of a uniform random guess."""
        return 1 / self.classes


def statistics_of(task: Task) -> Statistics:
    """Reads both splits.

    >>> from dualscope import Task
    >>> found = statistics_of(Task.load("embedded-sst2"))
    >>> found.classes, found.uniform, 0.5 <= found.majority < 0.6
    (2, 0.5, True)
    """
    labels: Counter[int] = Counter()
    words: list[int] = []
    for example in task.evaluation:
        labels[example.label] += 1
        words.append(len(task.prompt(example).split()))
    return Statistics(
        train=len(task.train),
        evaluation=len(words),
        classes=len(task.labels),
        majority=max(labels.values()) / len(words),
        words=sum(words) / len(words),
        longest=max(words),
    )
