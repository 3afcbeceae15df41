"""Generated text: a small English-like language, and the embedded tasks that are written in it."""

from dualscope.tasks.sources import GENERATORS
from dualscope.tasks.synthetic.embedded_tasks import ATTRIBUTES, Attribute, generate_rows, generator
from dualscope.tasks.synthetic.generated_words import LEXICON, Lexicon

for _attribute in ATTRIBUTES:
    GENERATORS.add(f"embedded-{_attribute.name}", generator(_attribute))

__all__ = ["ATTRIBUTES", "LEXICON", "Attribute", "Lexicon", "generate_rows", "generator"]
