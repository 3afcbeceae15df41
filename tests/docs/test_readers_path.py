"""The reader's path: short enough to be read, and every command of the cookbook runs."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualscope import Model

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
MOST_WORDS = 15_000
BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def path_pages() -> list[Path]:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = next(pages for part in nav for name, pages in part.items() if name == "The reader's path")
    return [DOCS / file for page in pages for file in page.values()]


def test_the_path_is_short_enough() -> None:
    """All that stands on these pages counts: code, tables, and what commands print."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in path_pages()}
    assert {"tutorial.md", "cookbook.md", "report.md", "concepts.md", "faq.md", "citing.md"} <= words.keys()
    assert sum(words.values()) <= MOST_WORDS, words


def test_every_page_is_in_the_contents() -> None:
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if not re.search(rf": {re.escape(page.relative_to(DOCS).as_posix())}$", nav, re.MULTILINE)
    ]
    assert missing == []


# Sizes of a reader become those of a test; what a command leaves open is given, so that nothing is searched for.
SIZES = {"--seeds": "2", "--queries": "6"}
OPEN = {"run": {"--queries": "6", "--shots": "8", "--lr": "1", "--jobs": "1"}, "bake": {"--learner": "gd", "--lr": "1"}}


def small(command: list[str]) -> list[str]:
    """A command of the page with the sizes of a test.

    >>> small(["run", "--seeds", "5", "--lr", "0.1,1"])
    ['run', '--seeds', '2', '--lr', '0.1,1', '--queries', '6', '--shots', '8', '--jobs', '1']
    """
    sized = [SIZES.get(before, word) for before, word in zip(["", *command], command, strict=False)]
    return [*sized, *(part for option in OPEN.get(command[0], {}).items() if option[0] not in sized for part in option)]


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """A folder with what the recipes speak of: a model, a file of one's own examples, a script of the examples."""
    model = Model.load("embedded")
    model.hf.transformer.h = model.hf.transformer.h[:2]
    model.hf.config.n_layer = 2
    model.hf.save_pretrained(tmp_path / "my-model")
    model.tokenizer.save_pretrained(tmp_path / "my-model")
    films = [f"a fine film number {i},good\na dull film number {i},bad" for i in range(40)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *films]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_cookbook_runs(kitchen: Path, cli: Callable[..., Any]) -> None:
    """From the top to the bottom, in one folder, as a reader would."""
    done = 0
    for language, code in BLOCK.findall((DOCS / "cookbook.md").read_text(encoding="utf-8")):
        if language == "yaml":
            (kitchen / "reviews.yaml").write_text(code, encoding="utf-8")
        elif language == "python" and "LEARNERS.register" in code:
            (kitchen / "my_learners.py").write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile(code, "cookbook.md", "exec"), {})
        else:
            for line in code.splitlines():
                _, *command = shlex.split(line)
                result = cli(*small(command))
                assert result.code == 0, (line, result)
                done += 1
    assert done > 20
    for left in ("compared.html", "response.pdf", "answers.tex", "answer.html", "my-adapter/README.md"):
        assert (kitchen / left).stat().st_size > 0
