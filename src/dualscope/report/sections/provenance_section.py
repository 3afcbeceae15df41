"""What is needed to repeat it: versions, settings, demonstrations and prompts as text, failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dualscope.core.errors import InputError
from dualscope.report.charts.chart import Item, Listing, Note, Section
from dualscope.report.report_data import Data
from dualscope.report.reported_run import Document, ReportedRun
from dualscope.report.table import Table

EPISODES = 1
"""Episodes a task whose demonstrations are shown; all ids are in provenance.json."""


def section(data: Data) -> Section | None:
    items: list[Item] = [_versions(data)]
    for source in data.sources:
        head = f"{source.name}: " if len(data.sources) > 1 else ""
        items += [_failures(source, head), *_superseded(source, head)]
        if source.study:
            items.append(_text(f"{head}the study", yaml.safe_dump(source.study, sort_keys=False)))
        if source.regression_settings:
            items.append(_text(f"{head}the experiment", yaml.safe_dump(source.regression_settings)))
        items += _demonstrations(source, head)
    about = "Everything that is needed to repeat these numbers is in the run folders; this is what they say."
    return Section("provenance", "Provenance", tuple(items), about, folded=True)


def _versions(data: Data) -> Table:
    facts: list[tuple[str, list[str]]] = []
    known = [source.provenance for source in data.sources]
    packages = dict.fromkeys(name for p in known for name in p.get("packages", {}))
    facts.append(("dualscope", [str(p.get("dualscope", "–")) for p in known]))
    facts.append(("git commit", [str(p.get("git") or "–") for p in known]))
    facts.append(("Python", [str(p.get("python", "–")) for p in known]))
    facts += [(name, [str(p.get("packages", {}).get(name, "–")) for p in known]) for name in packages]
    facts.append(("platform", [str(p.get("platform", "–")) for p in known]))
    facts.append(("precision", [str(p.get("dtype", "–")) for p in known]))
    facts.append(("computed on", [source.computed_on for source in data.sources]))
    facts.append(("cells", [str(len(source.cells)) if source.has_cells else "–" for source in data.sources]))
    facts.append(("seeds", [_seeds(source) for source in data.sources]))
    for kind in ("weights", "tasks"):
        for name in dict.fromkeys(name for p in known for name in p.get(kind, {})):
            digests = [str(p.get(kind, {}).get(name, "–"))[:16] for p in known]
            facts.append((f"hash of {name}", digests))
    columns = ["what", *(source.name for source in data.sources)]
    return Table.build(columns, [[name, *values] for name, values in facts], task=None, title="Versions and settings")


def _seeds(source: ReportedRun) -> str:
    seeds = sorted({cell.episode.seed for cell in source.cells.values()}) if source.has_cells else []
    seeds = seeds or source.regression_settings.get("seeds", [])
    return ", ".join(map(str, seeds)) or "–"


def _failures(source: ReportedRun, head: str) -> Item:
    failures = {**source.failures(), **{key: f"unreadable: {why}" for key, why in source.broken.items()}}
    if not failures:
        return Note(f"{head}no cell failed." if source.has_cells else f"{head}no cells: a regression run.")
    lines = tuple((key[:8], reason.strip()) for key, reason in failures.items())
    return Listing(f"{head}{len(lines)} failed cell{'s' * (len(lines) != 1)}", lines)


def _superseded(source: ReportedRun, head: str) -> list[Item]:
    left = source.superseded if source.has_cells else 0
    cells = f"{left} cells" if left != 1 else "1 cell"
    said = f"{head}{cells} of earlier runs in this folder left out: the last run has others of the same setting."
    return [Note(said)] if left else []


def _text(title: str, text: str) -> Listing:
    return Listing(title, (("", text),))


def _demonstrations(source: ReportedRun, head: str) -> Iterator[Item]:
    """Demonstrations as text, drawn again from the data where it is still here and still the same."""
    episodes: dict[str, Document] = source.provenance.get("episodes", {})
    named = _tasks(source)
    by_task: dict[str, int] = {}
    for key, episode in episodes.items():
        task = episode.get("task", "")
        by_task[task] = by_task.get(task, 0) + 1
        if by_task[task] > EPISODES:
            continue
        found = named.get(task)
        ids, labels = episode["demonstrations"], episode["labels_icl"]
        is_same = found is not None and found.digest == source.provenance.get("tasks", {}).get(task)
        if found is None or not is_same or max(labels, default=0) >= len(found.labels):
            lines = tuple((str(i), "") for i in ids)
            why = "their text is not here: the data set cannot be read, or is no longer the same"
            yield Listing(f"{head}demonstrations of {key} ({why})", lines)
            continue
        lines = tuple(
            (identity, f"{_prompt(found, identity)}{found.answer(label)}")
            for identity, label in zip(ids, labels, strict=True)
        )
        yield Listing(f"{head}demonstrations of {key}", lines)


def _prompt(task: Any, identity: str) -> str:
    """The text of an example by its id, which ends in its row: a split may be too large to look through."""
    row = identity.rpartition(":")[2]
    example = task.train[int(row)] if row.isdecimal() and int(row) < len(task.train) else None
    return task.prompt(example) if example is not None and example.id == identity else "(not found)"


def _tasks(source: ReportedRun) -> dict[str, Any]:
    from dualscope.tasks import Task

    found: dict[str, Any] = {}
    data = source.study.get("data")
    for entry in source.study.get("tasks", []):
        name = entry["task"] if isinstance(entry, dict) else entry
        try:
            chat = bool(source.study.get("chat"))
            task = Task.load(str(name), data=Path(data) if data else None, offline=True, chat=chat)
            len(task.train)
        except (InputError, OSError):
            continue  # said in the report: their text is not here
        found[task.name] = task
    return found
