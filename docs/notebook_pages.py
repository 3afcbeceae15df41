"""Lets MkDocs show the notebooks: each becomes a page, as it was run, with a link to the notebook itself."""

import re
from pathlib import PurePosixPath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(([^)\s]+)\.ipynb\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = PurePosixPath(file.src_uri)
        notebook = nbformat.reads(file.content_string, as_version=4)
        text = f'{page(notebook)}\n\n<a href="{path.name}" download>This page as a notebook</a>\n'
        files.append(File.generated(config, str(path.with_suffix(".md")), content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages here, and to the notebooks where the repository is read."""
    return LINK.sub(r"](\1.md)", markdown)


def page(notebook: nbformat.NotebookNode) -> str:
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown(output) for output in joined(cell.outputs)]
    return "\n\n".join(parts)


def joined(outputs: list[Any]) -> list[Any]:
    """What was printed in pieces is one text."""
    found: list[Any] = []
    for output in outputs:
        if found and found[-1].output_type == output.output_type == "stream":
            found[-1] = nbformat.from_dict({**found[-1], "text": found[-1].text + output.text})
        else:
            found.append(output)
    return found


def shown(output: Any) -> str:
    """An output as Markdown: a table or a picture where it has one, else its text."""
    data = output.get("data", {})
    if "text/html" in data:
        # In one line: an empty one would end the HTML for Markdown.
        lines = (line for line in data["text/html"].splitlines() if line.strip())
        return f'<div class="output">{" ".join(lines)}</div>'
    if "image/png" in data:
        return f'<img class="output" alt="A chart" src="data:image/png;base64,{data["image/png"].strip()}">'
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```"
