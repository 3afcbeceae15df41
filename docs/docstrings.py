"""How the Python pages read the code: comments beside fields are shown (`labels: Tensor  # [queries]`), and examples
stand as code wherever a docstring has them.
"""

import io
import re
import tokenize
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    """What a page shows beyond what griffe finds by itself."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        is_field = not attr.source.lstrip().startswith("self.")
        if attr.docstring is None and is_field and (said := comment(attr.source)):
            attr.docstring = griffe.Docstring(said, parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)


def comment(source: str) -> str:
    """The last comment of a statement.

    >>> comment("labels: Tensor  # [queries]"), comment("text: str = '# no comment'")
    ('[queries]', '')
    """
    tokens = tokenize.generate_tokens(io.StringIO(source.strip() + "\n").readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    said = comments[-1].lstrip("# ") if comments else ""
    return "" if said.startswith(("type:", "noqa")) else said


def with_code(docstring: str) -> str:
    """Examples fenced: Markdown would take their prompts for quotations.

    >>> with_code("A sum.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['A sum.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
