"""The pages: every Python block runs as it stands, every link leads somewhere, every name is real."""

import re
from pathlib import Path

import pytest

from dualscope.theory import IDENTITIES, chosen

PAGES = sorted((Path(__file__).parents[2] / "docs" / "theory").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+\.md)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_from_top_to_bottom(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    for block in BLOCK.findall(text):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target


def test_every_page_is_in_the_contents() -> None:
    contents = next(page for page in PAGES if page.stem == "index").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.stem == "index" or f"({page.name})" in contents


def test_every_identity_is_explained() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in IDENTITIES if f"`{name}`" not in text] == []


def test_pages_name_only_what_exists() -> None:
    """`--only NAME` in a page must work."""
    for page in PAGES:
        for name in re.findall(r"dualscope theory --only (\S+)", page.read_text(encoding="utf-8")):
            assert chosen((name,))
