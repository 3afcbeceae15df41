"""Runs the notebooks and keeps what they show: python -m docs.run_notebooks."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new kernel; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    done = NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for cell in done.cells:
        cell.metadata.pop("execution", None)  # when it ran is of no interest
        if cell.cell_type == "code":  # nor are the warnings of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    done.metadata.pop("language_info", None)
    return done


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(f"ran {path.relative_to(FOLDER.parent)}")
