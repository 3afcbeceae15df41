"""The texts of a run's queries, kept once an episode's queries, so that a report can show what was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.canonical import fingerprint
from dualscope.core.untrusted_files import reading
from dualscope.studies.run_folder.storage import RunFolder

if TYPE_CHECKING:
    from dualscope.tasks import Lesson

FOLDER = "texts"


@dataclass(frozen=True)
class Texts:
    """What a task's queries say, by their ids, and its label words."""

    task: str
    labels: tuple[str, ...]
    by_query: dict[str, str]


def store_texts(run: RunFolder, lesson: Lesson) -> None:
    """Keep an episode's queries as they were read, label words with them; nothing where they are there already."""
    episode = lesson.episode
    asked = episode.asked or episode.task
    about = {"task": episode.task.name, "labels": list(episode.task.labels)}
    name = f"{FOLDER}/{fingerprint({**about, 'queries': list(lesson.query_ids)})}.parquet"
    if run.folder.exists(name):
        return
    prompts = [asked.prompt(query).encode("utf-8", "replace").decode() for query in episode.queries]
    table = pa.table({"query": list(lesson.query_ids), "text": prompts})
    sink = pa.BufferOutputStream()
    noted = table.replace_schema_metadata({"about": json.dumps(about)})
    pq.write_table(noted, sink, compression="zstd")
    run.folder.write(name, bytes(sink.getvalue()))


def stored_texts(run: RunFolder) -> list[Texts]:
    """All that a run keeps; none where it was made without (``--no-texts``)."""
    found = []
    for name in sorted(run.folder.names(FOLDER, ".parquet")):
        with reading(run.folder.path(f"{FOLDER}/{name}"), "delete it; the report does without"):
            data = pa.BufferReader(run.folder.read(f"{FOLDER}/{name}"))
            table = pq.ParquetFile(data).read(use_threads=False)
            about = json.loads((table.schema.metadata or {})[b"about"])
            pairs = zip(table["query"].to_pylist(), table["text"].to_pylist(), strict=True)
            found.append(Texts(str(about["task"]), tuple(map(str, about["labels"])), dict(pairs)))
    return found
