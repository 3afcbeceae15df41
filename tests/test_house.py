"""The house: folders of one kind of thing, one meaning a class name, tests called as what they test."""

import ast
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "dualscope"
FILES = sorted(SOURCE.rglob("*.py"))
ELSEWHERE = ("docs", "hostile", "data")
"""Folders of tests that are about the whole: the documentation, and whatever strangers and machines do to it."""
ACROSS = {
    "commands/test_help.py": "what --help shows, over all commands",
    "commands/test_hypotheses.py": "what learners refuse, as the command line says it",
    "commands/test_local_path.py": "what is only written to this machine, over all commands",
    "commands/test_per_head.py": "rows of single heads, from the command line to the report",
    "learners/test_new_learner.py": "a learner of one file, from the list to the verdict",
    "learners/test_constructed.py": "models built so that one hypothesis is the truth",
    "models/test_pretended.py": "the second device that other tests pretend",
    "models/test_tiny.py": "the factory that other tests build on",
    "report/test_figures.py": "figures for papers, from the command line and in Python",
    "tasks/test_own_data.py": "one's own data, from a bad row to a task",
    "test_benchmarks.py": "what the benchmarks measure with",
    "test_house.py": "this",
    "test_package.py": "what is installed",
    "test_readme.py": "what the README shows",
    "test_shot_curve.py": "what a benchmark finds over numbers of shots",
    "theory/test_constructions.py": "layers that learn: several papers' constructions",
    "theory/test_duals.py": "several dual forms over shapes",
}
"""Tests that are of no one file."""


def test_a_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_file_name_stands_once() -> None:
    """Who knows the idea finds its file: no two files of the package are called alike."""
    names = Counter(path.stem for path in FILES if not path.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_tests_are_called_as_what_they_test() -> None:
    own = {path.relative_to(SOURCE).with_suffix("") for path in FILES}
    own |= {path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_dir()}
    nameless = []
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        test = path.relative_to(REPOSITORY / "tests")
        tested = test.with_name(test.stem.removeprefix("test_"))
        if test.parts[0] not in ELSEWHERE and str(test) not in ACROSS and tested not in own:
            nameless.append(str(test))
    assert nameless == [], "name it after the file that it tests, or say in ACROSS what it is about"
