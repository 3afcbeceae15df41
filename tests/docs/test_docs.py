"""The documentation is up to date, and its code runs."""

import doctest
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import pytest
import typer
import yaml

import dualscope
from docs import docstrings
from docs.generate import PAGES
from docs.pages import api, fields, markdown
from dualscope.cli import app
from dualscope.core.registry import Registry

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = (
    "tutorial.md",
    "api/index.md",
    "add-task.md",
    "add-model.md",
    "add-learner.md",
    "add-metric.md",
    "regression.md",
)


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


@cache
def package() -> Any:
    """The package as the Python pages see it."""
    return griffe.load("dualscope", search_paths=[REPOSITORY / "src"], resolve_aliases=True)


@pytest.mark.parametrize("name", list(PAGES))
def test_pages_are_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: python -m docs.generate"


def test_every_public_name_is_on_a_page_of_python() -> None:
    shown = [name for _, names in api.SUBJECTS.values() for name in names]
    assert sorted(shown) == sorted(set(dir(dualscope)) - {"__version__"}), "docs/pages/api.py lists them"


@pytest.mark.parametrize("name", sorted(set(dir(dualscope)) - {"__version__"}))
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    """Those of classes and functions run with the doctests of their modules; those of registries here."""
    public = getattr(dualscope, name)
    said = package()[api.path_of(name).removeprefix("dualscope.")].docstring
    assert said is not None
    assert ">>> " in said.value
    if isinstance(public, Registry):
        test = doctest.DocTestParser().get_doctest(said.value, {}, name, None, None)
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("module", [docstrings, fields, markdown])
def test_examples_of_what_writes_the_pages(module: Any) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_every_field_of_a_file_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \|.*\|$", (DOCS / "fields.md").read_text(), flags=re.MULTILINE)
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_metric_and_learner_is_defined() -> None:
    text = (DOCS / "reference.md").read_text()
    from dualscope.learners import LEARNERS
    from dualscope.metrics.catalog import DEFAULT

    assert all(f"| `{name}` |" in text for name in (*DEFAULT, *LEARNERS))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with the data that the page on tasks speaks of."""
    rows = [{"text": f"a fine film {i}", "label": i % 2} for i in range(8)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reviews.yaml").write_text(blocks(DOCS / "add-task.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", OURS)
def test_python_runs(name: str, folder: Path, forget: None) -> None:
    found = blocks(DOCS / name, "python")
    assert found
    place: dict[str, Any] = {"__name__": "docs"}
    for text in found:
        exec(compile(text, name, "exec"), place)  # the pages' own code


def test_the_learner_of_the_page_learns(folder: Path, forget: None) -> None:
    from dualscope import compare

    text = blocks(DOCS / "add-learner.md", "python")[0]
    exec(compile(text, "add-learner.md", "exec"), {"__name__": "docs"})
    result = compare("embedded", "embedded-sst2", ["gd", "gd-half"], shots=2, queries=4, lr=1.0)
    size = {row["learner"]: row["value"] for row in result.table("change_norm").to_pylist()}
    assert 0 < size["gd-half"] < size["gd"]


def commands() -> Iterator[tuple[str, str]]:
    for page in [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for language in ("sh", "bash", "console"):
            for text in blocks(page, language):
                for line in text.replace("\\\n", " ").splitlines():
                    if line.strip().startswith("dualscope "):
                        yield page.name, line.strip()


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert words[1].startswith("--") or words[1] in known, line
    if words[1] in known:
        options = {opt for p in known[words[1]].params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert [w for w in words if w.startswith("--") and w.partition("=")[0] not in options] == [], line


def test_yaml_is_valid() -> None:
    for page in DOCS.rglob("*.md"):
        for text in blocks(page, "yaml"):
            yaml.safe_load(text)


def test_the_limits_are_those_of_the_code() -> None:
    from dualscope.choosing.halving import ENOUGH
    from dualscope.core.statistics import SNR_THRESHOLD
    from dualscope.studies.study import MOST_CELLS

    text = (DOCS / "limits.md").read_text(encoding="utf-8")
    assert f"at most {MOST_CELLS:,} cells" in text
    assert f"needs {ENOUGH} training examples" in text
    assert f"layers below {SNR_THRESHOLD:g} are flagged" in text
