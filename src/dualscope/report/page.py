"""The page: sections into one file that needs nothing else. ``dualscope share`` puts the run's data inside."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import cleandoc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope._version import __version__
from dualscope.core.errors import InputError
from dualscope.core.folder import check_not_kept, check_regular, open_regular
from dualscope.core.spec import LearnerSpec
from dualscope.core.untrusted_files import reason
from dualscope.findings.answer import metric_title
from dualscope.report.charts.chart import Browser, Section, legend
from dualscope.report.report_data import Data
from dualscope.report.table import Badge, Number
from dualscope.studies.execute.work import is_full_disk
from dualscope.studies.run_folder.storage import WITHOUT_QUERIES

DOCUMENTS = ("study.yaml", "summary.csv", "verdict.json", "response.json")
READ_ME = """A run of dualscope: report, rows and provenance.

rows.parquet     every row: a value with its model, task, seed, learner and metric (pandas.read_parquet)
queries.parquet  a row a query, where the run kept them
summary.csv      means over seeds with intervals
study.yaml       what was run: `dualscope run study.yaml` repeats it
provenance.json  versions, hashes, devices, and which examples were shown
"""


def write_shared(run: str, target: Path) -> tuple[Path, int]:
    """The page with the data inside; returns where it is, and how many rows are in it."""
    check_page(target)
    data = Data([run])
    archive, rows = archived(data)
    name = f"{data.sources[0].name}.zip"
    href = f"data:application/zip;base64,{base64.b64encode(archive).decode()}"
    return put(target, render(data, download=(name, href, len(archive))), f"--out {target}"), rows


def archived(data: Data) -> tuple[bytes, int]:
    """Rows, documents and provenance as a zip file; and how many rows."""
    source = data.sources[0]
    tables = [source.run.rows([cell]) for cell in source.all_cells]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(_entry("README.txt"), READ_ME)
        bundle.writestr(_entry("rows.parquet"), _parquet(rows))
        asked = [cell for cell in source.all_cells if WITHOUT_QUERIES not in source.run.notes(cell)]
        queries = [source.run.queries(cell) for cell in asked]
        if queries := [table for table in queries if table.num_rows]:
            whole = pa.concat_tables(queries, promote_options="permissive")
            bundle.writestr(_entry("queries.parquet"), _parquet(whole))
        bundle.writestr(_entry("provenance.json"), json.dumps(source.provenance, indent=1))
        for name in DOCUMENTS:
            if source.run.folder.exists(name):
                bundle.writestr(_entry(name), source.run.folder.read(name))
    return memory.getvalue(), rows.num_rows


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a date: the same run gives the same file."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


FEW = 3  # names in a title; the line below it has them all
TEMPLATES = Path(__file__).parent / "templates"


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained page about one or more runs; returns where it is.

    >>> write_report([], "report.html")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: a report is about at least one run folder; give what `run --out` wrote
    """
    if not runs:
        raise InputError("a report is about at least one run folder; give what `run --out` wrote")
    target = Path(out)
    if target.is_dir():
        raise InputError(f"--out {out}: is a folder; give the name of a file, as in {target / 'report.html'}")
    check_page(target)
    return put(target, render(Data(runs)), f"--out {out}")


def put(target: Path, text: str, asked: str) -> Path:
    """Write a file whole or not at all; ``asked`` is what an error begins with."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists():
            check_regular(target, target.stat())  # a device or a pipe would be replaced by the page
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(target)
    except OSError as error:
        if is_full_disk(error):
            raise
        raise InputError(f"{asked}: cannot be written ({reason(error)})") from None
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return target


def check_page(target: Path, option: str = "--out") -> None:
    """A page takes the place of a page, and of nothing else: a run's own study, say."""
    check_not_kept(option, target)
    if not target.exists():
        return
    try:
        with open_regular(target) as file:
            head = file.read(200)
    except OSError as error:
        raise InputError(f"{option} {target}: cannot be written ({reason(error)})") from None
    if head.strip() and b"<!doctype html" not in head.lower():
        raise InputError(f"{option} {target}: there is a file that is no page; give another name")


def render(data: Data, download: tuple[str, str, int] | None = None) -> str:
    """The page's text; ``download`` is a file that it holds: name, data URL and size in bytes."""
    from plotly.offline import get_plotlyjs

    from dualscope.report.sections import response_section as response
    from dualscope.report.sections import sections_of
    from dualscope.report.sections import verdict_section as verdict

    sections = sections_of(data)
    if not data.side_by_side:
        sections = [section.without_column("model") for section in sections]
    named = {name for section in sections for chart in section.charts() for name in chart.metrics}
    learnings = [who for subject in data.subjects for who in subject.learnings.values()]
    plotly = get_plotlyjs()
    script = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("plots.js", "page.js", "queries.js"))
    return str(
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_title(data),
            headlines=response.headlines(data) or verdict.headlines(data),
            data=data,
            download=download,
            sections=sections,
            tasks=data.tasks,
            glossary=glossary(named, learnings),
            style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
            plotly=plotly,
            script=script,
            policy=_policy([plotly, script]),
            plots=to_json(_plots(sections)),
            queries=to_json(_queries(sections)),
            version=__version__,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
        )
    )


def _title(data: Data) -> str:
    """The question and the model."""
    found = dict.fromkeys(subject.model for subject in data.subjects)
    models = ["the embedded model" if model == "embedded" else model for model in found]
    if not models:
        names = ", ".join(source.name for source in data.sources)
        experiments = sum(source.has_regression for source in data.sources)
        if not experiments:
            return f"Nothing that can be read: {names}"
        return f"In-context regression: {names if experiments <= FEW else f'{experiments} experiments'}"
    named = ", ".join(models[:-1]) + " and " * (len(models) > 1) + models[-1]
    return f"Is in-context learning gradient descent in {named}?"


def _plots(sections: Sequence[Section]) -> dict[str, Any]:
    return {
        f"{chart.id}-{i}": {
            "data": list(panel.data),
            "layout": panel.layout,
            "byTask": panel.by_task,
            "ends": panel.named_at_ends,
        }
        for section in sections
        for chart in section.charts()
        for i, panel in enumerate(chart.panels)
    }


def _queries(sections: Sequence[Section]) -> dict[str, Any]:
    found = [item for section in sections for item in section.items if isinstance(item, Browser)]
    return {"sets": found[0].sets, "texts": found[0].texts} if found else {}


def to_json(content: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element.

    >>> to_json({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Only these scripts run, and nothing is fetched from anywhere: a second wall behind the escaping."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _prose(text: str) -> Any:
    """Text with what stands in backquotes set as code; everything escaped."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.replace(" %", "\N{NO-BREAK SPACE}%").split("`")]
    return Markup("").join(Markup("<code>%s</code>") % p if i % 2 else p for i, p in enumerate(parts))


def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests["number"] = lambda entry: isinstance(entry, Number)
    environment.tests["badge"] = lambda entry: isinstance(entry, Badge)
    environment.filters["legend"] = legend
    environment.filters["metric_title"] = metric_title
    environment.filters["prose"] = _prose
    environment.filters["kind"] = lambda item: type(item).__name__.lower()
    environment.filters["trusted"] = Markup  # our own style, scripts and JSON: used nowhere else
    return environment


@dataclass(frozen=True)
class Definition:
    name: str
    about: str
    formula: str = ""
    """Of a metric; a learner has none."""


def glossary(metrics: Iterable[str], learnings: Iterable[LearnerSpec]) -> list[Definition]:
    """The named metrics and learners, in the registries' order; what a plugin defines is said to be so."""
    from dualscope.learners import COMBINATORS, LEARNERS
    from dualscope.metrics import METRICS

    wanted = set(metrics)
    found = [Definition(n, METRICS[n].about, METRICS[n].formula) for n in METRICS if n in wanted]
    learnings = list(learnings)
    names = {learning.name for learning in learnings}
    controls = {learning.control for learning in learnings}
    found += [Definition(name, summary(LEARNERS[name])) for name in LEARNERS if name in names]
    found += [Definition(f"under {n}", summary(COMBINATORS[n])) for n in COMBINATORS if n in controls]
    known = {definition.name for definition in found}
    return found + [Definition(name, "defined by a plugin") for name in sorted((wanted | names) - known)]


def summary(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
