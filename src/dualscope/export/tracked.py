"""A run folder as an experiment tracker sees it: one tracked run for each learner on each task, over all its seeds."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dualscope.core.canonical import fingerprint
from dualscope.core.errors import InputError
from dualscope.core.rows import SUMMARY_KEYS, SummaryRow, column_name
from dualscope.core.spec import EpisodeSpec, LearnerSpec
from dualscope.core.untrusted_files import reason
from dualscope.findings.summary import ALL_TASKS
from dualscope.report import write_report
from dualscope.report.reported_run import ReportedRun

# What trackers have in common: which names they accept, and that what shares a step is logged together.


Curve = tuple[tuple[int, float], ...]
"""(step, value), in order."""


def metric_name(metric: str, reference: str | None, own: str | None) -> str:
    """A metric's name, with its reference where that is another one than the cell's own.

    >>> metric_name("alpha", "gd[epochs=3]", "in-context"), metric_name("sim_aou", "in-context", "in-context")
    ('alpha_gd_epochs_3', 'sim_aou')
    """
    name = column_name(metric, reference, own)
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).rstrip("_")


def project(name: str) -> str:
    """A project's name.

    >>> project("runs/my study: 1")
    'runs-my-study-1'
    """
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:100] or "dualscope"


def by_step(curves: Mapping[str, Curve]) -> dict[int, dict[str, float]]:
    """Curves by step.

    >>> by_step({"a": ((0, 0.1), (1, 0.2)), "b": ((1, 0.3),)})
    {0: {'a': 0.1}, 1: {'a': 0.2, 'b': 0.3}}
    """
    found: dict[int, dict[str, float]] = {}
    for name, curve in curves.items():
        for step, value in curve:
            found.setdefault(step, {})[name] = value
    return dict(sorted(found.items()))


Param = str | int | float
FILES = ("study.yaml", "provenance.json", "summary.csv", "verdict.json")


@dataclass(frozen=True)
class Tracked:
    """A learner on a task: what was set, what came out over all seeds, and its curves.

    ``metrics`` has every aggregate, and its interval's ends as ``NAME.low`` and ``NAME.high``. ``by_layer`` is each
    metric's mean over seeds with the layer as the step, ``by_step`` the same over the steps of training.
    """

    id: str
    name: str
    params: Mapping[str, Param]
    metrics: Mapping[str, float]
    by_layer: Mapping[str, Curve]
    by_step: Mapping[str, Curve]
    answer: str | None = None
    """What the verdict says of it, where it is asked about."""


@dataclass(frozen=True)
class TrackedStudy:
    """All tracked runs of a run folder, the answer in words, and the files that belong to the whole."""

    id: str
    place: str
    name: str
    answer: str
    params: Mapping[str, Param]
    runs: tuple[Tracked, ...]
    files: tuple[Path, ...]


def tracked_study(place: str | Path, scratch: Path) -> TrackedStudy:
    """Read a run folder; the files of the whole (its report is made where there is none) are copied to ``scratch``."""
    source = ReportedRun(place)
    if not source.has_cells:
        raise InputError(f"{place}: a regression experiment, and only studies can be exported")
    answers = _answers(source.verdicts)
    members: dict[tuple[Any, ...], list[str]] = {}
    for name, cell in source.cells.items():
        members.setdefault(_key(cell.columns()), []).append(name)
    totals: dict[tuple[Any, ...], list[SummaryRow]] = {}
    for row in source.summary:
        if row["task"] != ALL_TASKS:
            totals.setdefault(_key(row), []).append(row)
    several = len({row["model"] for row in source.summary}) > 1
    runs = []
    for key, cells in members.items():
        columns = dict(zip(SUMMARY_KEYS, key, strict=True))
        rows = totals.get(key, [])
        against = source.cells[cells[0]].reference
        own = None if against is None else against.label
        by_layer, by_step = _curves(pa.concat_tables([source.table(cell) for cell in cells]), own)
        runs.append(
            Tracked(
                fingerprint(sorted(cells)),
                _name(columns, several),
                {**_params(columns), "seeds": max((row["seeds"] for row in rows), default=0)},
                dict(_metrics(rows, own)),
                by_layer,
                by_step,
                answers.get(_asked(columns)) if columns["variant"] == "trained" else None,
            )
        )
    headlines = dict.fromkeys(found["headline"] for found in source.verdicts)
    about = {name: value for name in ("dualscope", "device") if isinstance(value := source.provenance.get(name), str)}
    return TrackedStudy(
        fingerprint(sorted(source.cells)),
        str(place),
        source.name,
        " ".join(headlines) or "No answer: no learner was compared with in-context learning.",
        {
            "models": _listed(cell.episode.model.name for cell in source.cells.values()),
            "tasks": _listed(cell.episode.task for cell in source.cells.values()),
            **about,
        },
        tuple(runs),
        tuple(_files(source, scratch)),
    )


def _key(columns: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the cells of a tracked run have in common: all but their draws."""
    return tuple(columns[name] for name in SUMMARY_KEYS)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _name(columns: Mapping[str, Any], several: bool) -> str:
    """What a person picks a run by: the learner, the task, and whatever is not as usual."""
    parts = [columns["model"]] if several else []
    parts += [LearnerSpec.of_row(columns).label, columns["task"]]
    parts += [columns["variant"]] if columns["variant"] != "trained" else []
    parts += [f"{columns['shots']} shots"]
    parts += [columns["demo_labels"]] if columns["demo_labels"] != "gold" else []
    parts += [f"lr {columns['lr']:g}"] if columns["lr"] is not None else []
    return " · ".join(parts)


def _params(columns: Mapping[str, Any]) -> dict[str, Param]:
    """Every column that has a value, and every option by its own name."""
    plain = {key: value for key, value in columns.items() if value is not None and key != "options"}
    options = {
        f"option.{key}": value if isinstance(value, str | int | float) else json.dumps(value)
        for key, value in json.loads(columns["options"] or "{}").items()
    }
    return plain | options


def _metrics(rows: Sequence[SummaryRow], own: str | None) -> list[tuple[str, float]]:
    found = []
    for row in rows:
        name = metric_name(row["metric"], row["reference"], own)
        for end, value in (("", row["value"]), (".low", row["low"]), (".high", row["high"])):
            if math.isfinite(value):
                found.append((name + end, value))
    return found


def _curves(table: pa.Table, own: str | None) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Means over seeds of what has layers or steps; draws of one seed are averaged first."""
    curves: list[dict[str, dict[int, float]]] = [{}, {}]
    kept = table.filter(pc.and_(pc.is_finite(table["value"]), pc.is_null(table["head"])))
    kept = kept.filter(pc.or_(pc.is_valid(kept["layer"]), pc.is_valid(kept["step"])))
    keys = ["metric", "reference", "layer", "step"]
    seeds = kept.group_by([*keys, "seed"]).aggregate([("value", "mean")])
    means = seeds.group_by(keys).aggregate([("value_mean", "mean")])
    for row in means.to_pylist():
        name = metric_name(row["metric"], row["reference"], own)
        layer, step, value = row["layer"], row["step"], row["value_mean_mean"]
        if step is None:
            curves[0].setdefault(name, {})[layer] = value
        else:
            inside = name if layer is None else f"{name}/layer_{layer}"
            curves[1].setdefault(inside, {})[step] = value
    layers, steps = ({name: tuple(sorted(line.items())) for name, line in found.items()} for found in curves)
    return layers, steps


def _asked(columns: Mapping[str, Any]) -> tuple[EpisodeSpec, str, LearnerSpec]:
    """Which answer of a verdict is about a learner."""
    return EpisodeSpec.of_row(columns).setting, columns["task"], LearnerSpec.of_row(columns)


def _answers(verdicts: Sequence[Mapping[str, Any]]) -> dict[tuple[EpisodeSpec, str, LearnerSpec], str]:
    found = {}
    for verdict in verdicts:
        setting = EpisodeSpec.of_row(verdict["setting"]).setting
        for answer in verdict["answers"]:
            found[setting, answer["task"], LearnerSpec.from_facts(answer["learning"])] = answer["answer"]
    return found


def _files(source: ReportedRun, scratch: Path) -> list[Path]:
    found = []
    for name in FILES:
        if source.run.folder.exists(name):
            (scratch / name).write_bytes(source.run.folder.read(name))
            found.append(scratch / name)
    page = scratch / "report.html"
    if source.run.folder.exists("report.html"):
        page.write_bytes(source.run.folder.read("report.html"))
    else:
        write_report([str(source.run.folder)], page)
    return [*found, page]


# A tracker's own client: imported when it is asked for, with nothing set that would send anything anywhere.


def client(name: str) -> Any:
    """The module, or one sentence that says how to get it.

    >>> client("mlflowx")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: --to mlflowx needs its client: pip install 'dualscope[mlflowx]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != name:
            raise InputError(
                f"--to {name}: its client is installed, and lacks {error.name}: pip install 'dualscope[{name}]'"
            ) from None
        raise InputError(f"--to {name} needs its client: pip install 'dualscope[{name}]'") from None


@contextmanager
def said_by(name: str) -> Iterator[None]:
    """What a client complains about (a store of another version, a full disk) is told as its own words."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--to {name}: its client says: {reason(error)}") from error
