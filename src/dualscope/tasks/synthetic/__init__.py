"""Generated text: a small English-like language, and the embedded tasks that are written in it."""

from dualscope.tasks.generators import GENERATORS
from dualscope.tasks.synthetic.attributes import ATTRIBUTES, Attribute
from dualscope.tasks.synthetic.embedded_tasks import generate_rows, generator
from dualscope.tasks.synthetic.lexicon import LEXICON, Lexicon

for _attribute in ATTRIBUTES:
    GENERATORS.add(f"embedded-{_attribute.name}", generator(_attribute))

__all__ = ["ATTRIBUTES", "LEXICON", "Attribute", "Lexicon", "generate_rows", "generator"]
