"""A study in the local stores of experiment trackers, MLflow, Trackio and Weights & Biases: nothing is sent.

First what every tracker is told of a study, then one function for each tracker, and one for plain tables,
for spreadsheets and R.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dualscope.core.canonical import fingerprint
from dualscope.core.command_hints import environment
from dualscope.core.errors import InputError
from dualscope.core.rows import SUMMARY_KEYS, SummaryRow, column_name
from dualscope.core.spec import EpisodeSpec, LearnerSpec
from dualscope.core.spreadsheet import as_text
from dualscope.core.untrusted_files import reason
from dualscope.findings.summary import ALL_TASKS
from dualscope.report import write_report
from dualscope.report.reported_run import ReportedRun
from dualscope.studies.run_folder.storage import RunFolder

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


QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRACKING_URI": None, "MLFLOW_TRACKING_TOKEN": None}
STORE = "mlflow.db"
BATCH = 1000  # metrics in one request, MLflow's limit
LONGEST = 5000  # characters of a parameter


def to_mlflow(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write to ``folder``/mlflow.db, where `mlflow ui` looks; what is there already is not repeated."""
    folder = folder or Path()
    with environment(QUIET), said_by("mlflow"):
        folder.mkdir(parents=True, exist_ok=True)
        store = f"sqlite:///{(folder / STORE).absolute()}"
        tracker = client("mlflow").MlflowClient(tracking_uri=store)
        found = tracker.get_experiment_by_name(study.name)
        experiment = (
            tracker.create_experiment(study.name, artifact_location=(folder / "mlartifacts").absolute().as_uri())
            if found is None
            else found.experiment_id
        )
        if tracker.search_runs([experiment], f"tags.`dualscope.id` = '{study.id}' and status = 'FINISHED'"):
            tell("this study is there already, as it is now; nothing was added")
        else:
            _write(tracker, client("mlflow").entities, experiment, study, tell)
    return [f"look at it: mlflow ui --backend-store-uri {store}   (pip install mlflow)"]


def _write(tracker: Any, kinds: Any, experiment: str, study: TrackedStudy, tell: Callable[[str], None]) -> None:
    # The whole is ended last: one that was interrupted is not taken for finished.
    whole = tracker.create_run(
        experiment, run_name=study.name, tags={"dualscope.id": study.id, "mlflow.note.content": study.answer}
    ).info.run_id
    tracker.log_batch(whole, params=[kinds.Param(key, str(value)[:LONGEST]) for key, value in study.params.items()])
    for number, run in enumerate(study.runs, 1):
        tell(f"{number} of {len(study.runs)}: {run.name}")
        tags = {"mlflow.parentRunId": whole, "dualscope.id": run.id}
        tags |= {"answer": run.answer} if run.answer else {}
        id_ = tracker.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        tracker.log_batch(id_, params=[kinds.Param(key, str(value)[:LONGEST]) for key, value in run.params.items()])
        metrics = _mlflow_metrics(run, kinds.Metric)
        for start in range(0, len(metrics), BATCH):
            tracker.log_batch(id_, metrics=metrics[start : start + BATCH])
        tracker.set_terminated(id_)
    for file in study.files:
        tracker.log_artifact(whole, str(file))
    tracker.set_terminated(whole)


def _mlflow_metrics(run: Tracked, kind: Any) -> list[Any]:
    now = int(time.time() * 1000)
    found = [kind(name, value, now, 0) for name, value in run.metrics.items()]
    for group, curves in (("by_layer", run.by_layer), ("by_step", run.by_step)):
        found += [kind(f"{group}/{name}", value, now, step) for name, curve in curves.items() for step, value in curve]
    return found


ELSEWHERE = ("SPACE_ID", "SERVER_URL", "WEBHOOK_URL", "BUCKET_ID", "DATASET_ID")
"""Settings of Trackio that would send runs to another machine."""


def to_trackio(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write to ``folder``, or to where Trackio keeps its runs; what is there already is not repeated."""
    nowhere = dict.fromkeys(f"TRACKIO_{name}" for name in ELSEWHERE)
    there = {} if folder is None else {"TRACKIO_DIR": str(folder.absolute())}
    # What Trackio prints names commands that do not know the folder.
    with environment({**nowhere, **there}), said_by("trackio"), contextlib.redirect_stdout(io.StringIO()):
        trackio = client("trackio")
        name = project(study.name)
        kept = {run.config["dualscope_id"] for run in _runs(trackio, name) if "dualscope_id" in (run.config or {})}
        still = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        for number, run in enumerate(study.runs, 1):
            tell(f"{number} of {len(study.runs)}: {run.name}")
            if run.id in kept:
                continue
            config = {**run.params, "dualscope_id": run.id} | ({"answer": run.answer} if run.answer else {})
            live = trackio.init(name, name=run.name, group=str(run.params["task"]), config=config, **still)
            live.log(dict(run.metrics), step=0)
            for group, curves in (("by_layer", run.by_layer), ("by_training_step", run.by_step)):
                for step, values in by_step(curves).items():
                    live.log({f"{group}/{key}": value for key, value in values.items()}, step=step)
            trackio.finish()
        if study.id not in kept:
            config = {**study.params, "answer": study.answer, "dualscope_id": study.id}
            live = trackio.init(name, name=study.name, group="study", config=config, **still)
            live.log({"runs": len(study.runs)}, step=0)
            for file in study.files:  # while its run goes on: else each would be put into a folder of its own name
                trackio.save(file)
            trackio.finish()
    place = "" if folder is None else f"TRACKIO_DIR={folder.absolute()} "
    return [f'look at it: {place}trackio show --project "{name}"']


def _runs(trackio: Any, name: str) -> list[Any]:
    try:
        return list(trackio.Api().runs(name))
    except ValueError:  # there is no such project yet
        return []


OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
}


def to_wandb(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """Write offline runs to ``folder``/wandb. A run keeps its id, so what is synced twice is there once."""
    folder = folder or Path()
    places = dict.fromkeys(("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"), str(folder.absolute() / "wandb"))
    with environment({**OFFLINE, **places}), said_by("wandb"):
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        wandb = client("wandb")
        settings = wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="",
            disable_git=True,
            disable_code=True,
            save_code=False,
        )
        common = {"project": project(study.name), "dir": str(folder), "group": study.name, "settings": settings}
        for number, run in enumerate(study.runs, 1):
            tell(f"{number} of {len(study.runs)}: {run.name}")
            config = dict(run.params) | ({"answer": run.answer} if run.answer else {})
            live = wandb.init(id=run.id, name=run.name, config=config, job_type="learner", **common)
            for axis, curves in (("layer", run.by_layer), ("training_step", run.by_step)):
                live.define_metric(axis)
                live.define_metric(f"by_{axis}/*", step_metric=axis)
                for step, values in by_step(curves).items():
                    live.log({axis: step, **{f"by_{axis}/{name}": value for name, value in values.items()}})
            live.summary.update(dict(run.metrics))
            live.finish()
        live = wandb.init(
            id=study.id, name=study.name, notes=study.answer, config=dict(study.params), job_type="study", **common
        )
        _keep(wandb, live, study)
        live.finish()
    return [f"upload it, if you want to: wandb sync {folder / 'wandb'}/offline-run-*"]


def _keep(wandb: Any, live: Any, study: TrackedStudy) -> None:
    """The files of the whole as one artifact, and the report as a panel."""
    whole = wandb.Artifact(f"study-{study.id}", type="study")
    for file in study.files:
        whole.add_file(str(file))
    live.log_artifact(whole)
    live.summary.update({"answer": study.answer})


def to_csv(study: TrackedStudy, folder: Path | None, tell: Callable[[str], None]) -> list[str]:
    """``runs.csv`` is wide, ``curves.csv`` has a line a layer or step, ``rows.csv`` is all that was measured."""
    folder = folder or Path(f"{study.name}-csv")
    folder.mkdir(parents=True, exist_ok=True)
    params = list(dict.fromkeys(name for one in study.runs for name in one.params))
    metrics = list(dict.fromkeys(name for one in study.runs for name in one.metrics))
    lines = [[one.name, one.answer, *map(one.params.get, params), *map(one.metrics.get, metrics)] for one in study.runs]
    _write_csv(folder / "runs.csv", ["name", "answer", *params, *metrics], lines)
    _write_csv(
        folder / "curves.csv", ["name", *params, "metric", "over", "at", "value"], list(_curve_lines(study, params))
    )
    tell("all rows")
    pyarrow.csv.write_csv(_escaped(RunFolder.open(study.place).rows()), folder / "rows.csv")
    return [f"written: {folder / name}" for name in ("runs.csv", "curves.csv", "rows.csv")]


def _escaped(rows: pa.Table) -> pa.Table:
    """With every text as one: few differ, so each is looked at once."""
    for at, field in enumerate(rows.schema):
        if field.type == pa.string():
            coded = rows[field.name].combine_chunks().dictionary_encode()
            texts = pa.array([as_text(text) for text in coded.dictionary.to_pylist()], pa.string())
            rows = rows.set_column(at, field, pa.DictionaryArray.from_arrays(coded.indices, texts).cast(pa.string()))
    return rows


def _curve_lines(study: TrackedStudy, params: Sequence[str]) -> Iterator[list[Any]]:
    for one in study.runs:
        for over, curves in (("layer", one.by_layer), ("step", one.by_step)):
            for metric, curve in curves.items():
                for at, value in curve:
                    yield [one.name, *map(one.params.get, params), metric, over, at, value]


def _write_csv(file: Path, head: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(map(as_text, head))
        writer.writerows(map(as_text, line) for line in lines)
