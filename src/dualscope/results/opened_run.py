"""A run as people hold it in Python: its rows, what it says, and how it looks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from dualscope.core.errors import InputError, suggest
from dualscope.core.spec import EpisodeSpec
from dualscope.findings.answer import metric_title
from dualscope.report.charts.figures import PAGE, figure_of, is_figure, layers_figure
from dualscope.report.report_data import Data
from dualscope.report.terminal import number
from dualscope.studies.execute.progress import Reporter
from dualscope.studies.execute.runner import Runner, RunOutcome, execute_study
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.study import Study

SHOWN = ("accuracy", "sim_aou", "sim_am_delta")


class Run(RunFolder):
    """A run folder, on disk or behind an fsspec URL: ``Run.open("runs/quick")``.

    ``verdict`` is the answer in words, ``plot()`` a metric layer by layer, and a notebook shows a table.
    ``table(metric="sim_aou")`` picks rows, ``query("select ...")`` is SQL over ``rows`` and ``queries``, and
    ``to_pandas()``, ``to_polars()`` and ``to_arrow()`` hand over everything.

    >>> import tempfile
    >>> from dualscope import Run, run_study
    >>> study = {"tasks": "embedded-sst2", "learners": "gd", "lr": 1.0, "shots": 2, "seeds": 1, "queries": 4}
    >>> run = Run.open(run_study(study, tempfile.mkdtemp() + "/run").run.folder)
    >>> run.table(metric="accuracy").num_rows, run.verdict.split(":")[0]
    (3, 'Likeness of the whole change. Not testable')
    """

    @cached_property
    def _data(self) -> Data:
        return Data([str(self.folder)])

    @property
    def verdict(self) -> str:
        """The answer in one sentence; a line for each model and setting where there are several."""
        said = [
            (f"{verdict['setting']['model']}, {EpisodeSpec.of_row(verdict['setting']).in_words}", verdict["headline"])
            for verdict in self.responses_verdicts
        ] or [
            (f"{subject.name}, {EpisodeSpec.of_row(verdict['setting']).in_words}", verdict["headline"])
            for subject in self._data.subjects
            for verdict in subject.verdicts()
        ]
        if not said:
            return "No answer: no learner was compared with in-context learning."
        return said[0][1] if len(said) == 1 else "\n".join(f"{who}: {headline}" for who, headline in said)

    @property
    def responses_verdicts(self) -> list[dict[str, Any]]:
        """Whether learners respond to the labels as in-context learning does, for each model and setting, in full."""
        return [verdict for source in self._data.sources for verdict in source.response_verdicts]

    def plot(self, metric: str = "sim_aou", task: str | None = None, *, width: float | None = None) -> Any:
        """A figure by its name, or a metric layer by layer on trained weights, a panel a task (or this one).

        Args:
            metric: A figure's name, as ``dualscope list figures`` has them (``response``, ...), which is then what
                ``dualscope report RUN --figure`` writes; or a metric's name.
            task: Of a metric, this task alone.
            width: In inches. The result is a figure of matplotlib's.
        """
        if is_figure(metric):
            return figure_of(self._data, metric, width or PAGE)
        tasks = self._data.tasks
        if task is not None and task not in tasks:
            raise InputError(f"no such task in this run: '{task}': {suggest(task, tasks)}")
        panels = [
            (subject, name, lines)
            for subject in self._data.subjects
            for name in ([task] if task else subject.tasks)
            if (lines := self._lines(subject, name, metric))
        ]
        if not panels:
            known = sorted({key[3] for subject in self._data.subjects for key in self._data.lines(subject)})
            raise InputError(f"no such metric by layer in this run: '{metric}': {suggest(metric, known)}")
        several = len(self._data.subjects) > 1
        drawn = {f"{subject.name}: {name}" if several else name: lines for subject, name, lines in panels}
        colours = {label: subject.colour(label) for subject, _, lines in panels for label in lines}
        return layers_figure(drawn, metric_title(metric), colours, width or max(4.5, 3.4 * len(panels)))

    def _lines(self, subject: Any, task: str, metric: str) -> dict[str, Any]:
        found = self._data.lines(subject)
        return {key[2]: line for key, line in found.items() if key[:2] == (task, "trained") and key[3] == metric}

    def _repr_html_(self) -> str:
        """The answer, and a small table: a line a learner and task, on trained weights."""
        try:
            subjects = self._data.subjects
        except InputError as error:  # a run that has only begun
            return f"<p>{escape(str(error))}</p>"
        lines = []
        for subject in subjects:
            for task in subject.tasks:
                for learner in subject.learners:
                    rows = [subject.get(task, learner, metric) for metric in SHOWN]
                    cells = "".join(f"<td>{escape(number(row))}</td>" for row in rows)
                    lines.append(
                        f"<tr><th>{escape(subject.name)}</th><td>{escape(task)}</td><td>{escape(learner)}</td>{cells}</tr>"
                    )
        heads = "".join(f"<th>{escape(name)}</th>" for name in ("model", "task", "learner", *map(metric_title, SHOWN)))
        said = "<br>".join(map(escape, self.verdict.splitlines()))
        return f"<p>{said}</p><table><tr>{heads}</tr>{''.join(lines)}</table>"


def run_study(
    study: Study | Mapping[str, Any] | str | Path, out: str | Path, *, progress: bool | None = None, **options: Any
) -> RunOutcome:
    """Run a study from Python: ``run_study({"tasks": ["sst2"], "models": ["./model"]}, "runs/mine")``.

    The run folder is the same as the command line's. The same call again goes on where it was.

    Args:
        study: A `Study`, a mapping with the fields of a study file, the path of one, or a preset's name (``"quick"``).
        out: The run folder, or an fsspec URL.
        progress: Whether to show a bar. None: in a notebook and on a terminal.
        **options: Where and how it is computed: ``device``, ``jobs``, ``engine``, ``offline``, ``tell``.

    >>> import tempfile
    >>> from dualscope import run_study
    >>> study = {"tasks": "embedded-sst2", "learners": "gd", "lr": 1.0, "shots": 2, "seeds": 1, "queries": 4}
    >>> outcome = run_study(study, tempfile.mkdtemp() + "/run")
    >>> outcome.complete, len(outcome.computed)  # zero-shot, in-context, gd
    (True, 3)

    Raises:
        InputError: A field or a file of the study cannot be used. A cell that fails is in ``failures``, not raised.
    """
    known = {*inspect.signature(Runner).parameters} - {"study", "out"}
    if strange := next((name for name in options if name not in known), None):
        raise InputError(f"run_study() has no argument '{strange}': {suggest(strange, known | {'progress'})}")
    with Reporter(quiet=not _bar_is_wanted(progress)) as reporter:
        told = {"tell": reporter.tell, "begin": reporter.begin, **options}
        outcome = execute_study(_study(study), out, **told)
    return replace(outcome, run=Run(outcome.run.folder))


def _study(given: Study | Mapping[str, Any] | str | Path) -> Study:
    if isinstance(given, Study):
        return given
    if isinstance(given, Mapping):
        return Study.build(given)
    if isinstance(given, str) and not given.endswith((".yaml", ".yml")):
        return Study.resolve(preset=given)
    if isinstance(given, str | Path):
        return Study.resolve(file=given)
    raise InputError(
        f"study: its fields, a Study, a preset's name or a study file is needed, found {type(given).__name__}"
    )


def _bar_is_wanted(progress: bool | None) -> bool:
    console = Console(stderr=True)
    return bool(console.is_terminal or console.is_jupyter) if progress is None else progress
