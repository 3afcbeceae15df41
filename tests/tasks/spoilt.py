"""A task that is in order, and what spoils it."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

GOOD = """\
name: mine
source:
  files: {train: train.jsonl, evaluation: test.jsonl}
template: "Sentence: {sentence} Label:"
labels: [Negative, Positive]
"""
ROWS = "".join(json.dumps({"sentence": f"text {i}", "label": i % 2}) + "\n" for i in range(10))


def spoil(folder: Path, old: str, new: str) -> None:
    assert old in GOOD
    (folder / "mine.yaml").write_text(GOOD.replace(old, new))


def save_model(folder: Path, tokenizer: PreTrainedTokenizerBase, positions: int) -> None:
    """A model as far as validate looks at it: a configuration and a tokenizer."""
    from transformers import GPT2Config

    GPT2Config(n_positions=positions, vocab_size=len(tokenizer), n_layer=2, n_embd=8, n_head=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
