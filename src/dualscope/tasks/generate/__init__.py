"""Generated text: a small English-like language, and the embedded tasks that are written in it."""

from dualscope.tasks.generate.attributes import ATTRIBUTES, Attribute
from dualscope.tasks.generate.lexicon import LEXICON, Lexicon
from dualscope.tasks.generate.rows import generate_rows, generator
from dualscope.tasks.generators import GENERATORS

for _attribute in ATTRIBUTES:
    GENERATORS.add(f"embedded-{_attribute.name}", generator(_attribute))

__all__ = ["ATTRIBUTES", "LEXICON", "Attribute", "Lexicon", "generate_rows", "generator"]
