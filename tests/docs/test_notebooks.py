"""The notebooks run from their first cell to their last, in a kernel of their own."""

import pytest

from docs.run_notebooks import FOLDER, executed

NAMES = ("your-model", "your-task", "your-learner", "reading-a-run")


def test_there_are_no_others() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_and_shows_as_much_as_it_is_shown_with(name: str) -> None:
    import nbformat

    path = FOLDER / f"{name}.ipynb"
    shown, done = nbformat.read(path, as_version=4), executed(path)
    kinds = [
        [[output.output_type for output in cell.get("outputs", [])] for cell in book.cells] for book in (shown, done)
    ]
    assert kinds[0] == kinds[1], "run: python -m docs.run_notebooks"
    assert any(kinds[0])
