"""The documentation: builds without a warning, is up to date, and its code runs."""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dualscope.cli import app

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = ("quickstart.md", "add-task.md", "add-model.md", "add-learner.md", "add-metric.md", "regression.md")


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_builds_strictly(tmp_path: Path) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    build(config)
    page = (tmp_path / "site" / "report.html").read_text()
    assert "How to read the report" in page
    fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:)?//', page)
    assert fetched == []


@pytest.mark.parametrize("name", ["reference.md", "verdict.md"])
def test_pages_are_what_the_code_says(name: str) -> None:
    made = load(DOCS / "generate.py").PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == made, "run: python docs/generate.py"


def test_every_metric_and_learner_is_defined() -> None:
    text = (DOCS / "reference.md").read_text()
    from dualscope.learners import LEARNERS
    from dualscope.metrics.catalog import DEFAULT

    assert all(f"| `{name}` |" in text for name in (*DEFAULT, *LEARNERS))


def test_notebook_runs_and_is_the_one_shown() -> None:
    import nbformat
    from nbclient import NotebookClient

    shown = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    made = load(DOCS / "make_notebook.py").notebook()
    assert [c.source for c in shown.cells] == [c.source for c in made.cells], (
        "run: python docs/make_notebook.py"
    )
    done = NotebookClient(made, timeout=600, kernel_name="python3").execute()
    last = done.cells[-1].outputs[0]["text"]
    assert "has the verdict: True" in last


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
