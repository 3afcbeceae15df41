"""The site: built without a warning, nothing fetched, no page wider than a phone; links hold elsewhere too."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import dualscope

REPOSITORY = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_builds_strictly_and_fetches_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="((?:https?:)?//[^"]*)', page.read_text())
        assert fetched == [], page
    assert "How to read the report" in (site / "report.html").read_text()


def test_notebooks_are_pages_with_what_they_showed(site: Path) -> None:
    for notebook in (REPOSITORY / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        assert f'href="{notebook.name}" download' in page
        assert "import" in page
    assert "data:image/png;base64," in (site / "notebooks" / "your-model.html").read_text()


def test_python_pages_have_signatures_shapes_and_errors(site: Path) -> None:
    trace = (site / "api" / "models.html").read_text()
    assert "[queries, layers, heads, tokens]" in trace  # a comment beside the field
    assert 'id="dualscope.Model.from_hf"' in trace
    assert "InputError" in trace


CALLED = {
    "compare": ("compare",),
    "models": ("Model.from_hf", "Model.load", "Model.read"),
    "tasks": ("Task.load", "Task.from_examples", "Task.from_data", "Episode.draw", "Episode.of", "make_lesson"),
    "learners": ("Bench.learned", "choose_settings"),
    "metrics": ("measure",),
    "studies": ("run_study", "Run.plot"),
}


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in CALLED.items() for name in names])
def test_parameters_of_what_people_call_stand_in_a_table(site: Path, page: str, name: str) -> None:
    """Each parameter has a row in the built page, with its name, its default and what it does."""
    public = getattr(dualscope, name.partition(".")[0])
    called = getattr(public, name.partition(".")[2]) if "." in name else public
    text = (site / "api" / f"{page}.html").read_text()
    own = text.partition(f'id="dualscope.{name}"')[2].partition("doc-heading")[2].partition("doc-heading")[0]
    table = own.partition('<table class="parameters">')[2].partition("</table>")[0]
    said = {found.lstrip("*") for found in re.findall(r"<tr>\s*<td><code>(\**\w+)</code></td>\s*<td>\s*<p>\S", table)}
    assert set(inspect.signature(called).parameters) - {"self"} <= said


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_files_that_are_read_in_the_repository(name: str) -> None:
    targets = LINK.findall((REPOSITORY / name).read_text(encoding="utf-8"))
    assert [target for target in targets if not (REPOSITORY / target).exists()] == []


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_links_of_pages_hold_in_the_repository_too(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.browser
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(site: Path, browser: Any) -> None:
    """Wide tables and code scroll in boxes of their own."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    wide = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[path.relative_to(site).as_posix()] = width
    page.close()
    assert wide == {}
