"""Run folders that a hand has written: files of the right kind, with values that no run of ours would write.

Readers say what is wrong in words, or do without it: there is no traceback, whatever value stands where.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dualscope import Run
from tests.hostile.damaged import Made
from tests.hostile.test_endless_files import soon
from tests.hostile.test_generated import told

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, "", "x" * 5000, "</script>", [], [[1]], {}, {"a": [None]})
DOCUMENTS = ("provenance.json", "provenance/*", "verdict.json", "summary_of.json", "choices/*", "study.yaml")
TEXTS = ("", "[", "\x00", "9" * 400, "</script><b>", "../../x", "\n\n", "nan")
NUMBERS = (-1, 2**62, None)
FLOATS = (float("nan"), float("inf"), -1e308, None)
COLUMNS: tuple[str, ...] = (
    "model",
    "variant",
    "task",
    "seed",
    "order",
    "shots",
    "learner",
    "control",
    "role",
    "lr",
    "options",
)
COLUMNS += ("demo_labels", "chat", "balanced", "metric", "reference", "layer", "value", "low", "n", "dtype", "family")


def _paths(content: Any, most: int = 4) -> Iterator[tuple[Any, ...]]:
    """Where values stand in a document."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        pairs = list(content.items())
    elif isinstance(content, list):
        pairs = list(enumerate(content[:2]))
    for key, value in pairs:
        yield (key,)
        if most:
            yield from ((key, *rest) for rest in _paths(value, most - 1))


def _put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def _document(run: Path, name: str, rng: random.Random) -> str:
    """Put another value somewhere in a document; says which and where."""
    file = sorted(run.glob(name))[0]
    read: Callable[[str], Any] = yaml.safe_load if file.suffix == ".yaml" else json.loads
    content = read(file.read_text())
    path, value = rng.choice(list(_paths(content))), rng.choice(VALUES)
    _put(content, path, value)
    file.write_text(yaml.safe_dump(content) if file.suffix == ".yaml" else json.dumps(content))
    return f"{name}: {path} is {str(value)[:20]}"


def _cell(run: Path, column: str, rng: random.Random) -> str:
    """Put another value into a column of a cell's rows, of the type that it has."""
    file = rng.choice(sorted(run.glob("cells/*")))
    table = pq.read_table(file)
    at, field = table.schema.get_field_index(column), table.schema.field(column)
    kinds = {pa.string(): TEXTS, pa.int64(): NUMBERS, pa.float64(): FLOATS}
    value = rng.choice(kinds.get(field.type, (None,)))
    some = table[column].to_pylist()
    every = rng.random() < 0.5
    values = [value if every or i == 0 else one for i, one in enumerate(some)]
    changed = table.set_column(at, field, pa.array(values, field.type))
    pq.write_table(changed, file)
    return f"{file.name}: {column} is {str(value)[:20]} in {'every row' if every else 'one row'}"


CASES: list[tuple[Callable[[Path, str, random.Random], str], str, int]] = [
    (_document, name, seed) for name in DOCUMENTS for seed in range(8)
]
CASES += [(_cell, name, seed) for name in COLUMNS for seed in range(3)]
SAMPLE = random.Random(5).sample(CASES, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "name", "seed"), CASES if WHOLE else SAMPLE)
def test_crafted(
    made: Made, cli: Callable[..., Any], tmp_path: Path, change: Callable[..., str], name: str, seed: int
) -> None:
    out = Path(shutil.copytree(made.folder, tmp_path / "run"))
    said = change(out, name, random.Random(f"{name} {seed}"))
    with soon(), told():
        run = Run.open(out)
        run.query("select count(*) from rows")
        run.failures()
    for command in (
        ("report", out, "--out", tmp_path / "report.html"),
        ("export", out, "--to", "csv", "--out", tmp_path / "csv"),
        ("pack", out),
    ):
        with soon():
            done = cli(*command)
        assert done.code in (0, 1, 2), (said, command[0], done.err[-600:])
        assert "Traceback" not in done.err + done.out, said
        assert done.code == 0 or done.err.strip(), said
