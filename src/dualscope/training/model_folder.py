"""A model as a training gives it away: finite, in a folder that appears whole."""

import copy
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from dualscope.core.errors import InputError
from dualscope.core.folder import share
from dualscope.tasks.synthetic.generated_words import LEXICON
from dualscope.training.settings import Settings, check_balance

# The same model, in weights of other sizes: how far one learning rate moves each layer.
#
# Keys times c and queries divided by c give the same scores; values times c and the output projection divided by c
# give the same output. So the model computes what it did, in context or not. A gradient step on keys and values,
# however, moves what they do by 1 / c^2 as much. After training, the early layers of our small models are so
# sensitive that plain GD breaks them at rates at which the last layers have hardly moved; with a factor for each
# layer, one rate suits all.


@torch.no_grad()
def rebalance(model: Any, factors: Sequence[float]) -> None:
    """Multiply the keys and values of each layer of a GPT-2 by its factor; powers of two round nothing.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=2)).eval()
    >>> before = model(torch.arange(8)[None]).logits
    >>> rebalance(model, [4, 1])
    >>> bool(torch.equal(model(torch.arange(8)[None]).logits, before))
    True
    """
    blocks = model.transformer.h
    check_balance(factors, len(blocks))
    for block, factor in zip(blocks, factors, strict=True):
        attention = block.attn
        for projection in (attention.c_attn.weight, attention.c_attn.bias):
            query, key, value = projection.chunk(3, dim=-1)
            query /= factor
            key *= factor
            value *= factor
        attention.c_proj.weight /= factor


# "Label:" is one token and "film." two, with or without spaces around: pieces of a prompt may be tokenised separately.
PATTERN = r"<\w+>|\w+:|\w+|[^\w\s]"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer; a word outside of the language becomes ``<unk>``.

    >>> tokenizer = make_tokenizer()
    >>> tokenizer.tokenize("Sentence: the film was superb. Label:") + tokenizer.tokenize(" Positive")
    ['Sentence:', 'the', 'film', 'was', 'superb', '.', 'Label:', 'Positive']
    """
    vocabulary = {word: number for number, word in enumerate(LEXICON.words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(PATTERN), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )


def save_model(model: GPT2LMHeadModel, out: Path, facts: dict[str, Any]) -> None:
    """A folder in Hugging Face's format, weights in half precision, with ``training.json`` beside.

    That file comes first: a process that is killed here leaves a folder that is known to be ours.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "training.json").write_text(json.dumps(facts, indent=1))
    copy.deepcopy(model).cpu().half().save_pretrained(out)
    for file in out.glob("*.safetensors"):
        share(file)
    make_tokenizer().save_pretrained(out)


def finished(model: GPT2LMHeadModel, settings: Settings) -> GPT2LMHeadModel:
    """The model as it is given away. The one in training is left alone: weights that are rebalanced are others."""
    final = copy.deepcopy(model)
    final.eval()
    if settings.balance:
        rebalance(final, settings.balance)
    return final


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears whole or not at all; one that is there gives way."""
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    yield aside
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def check_finite(model: GPT2LMHeadModel) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.detach().half().isfinite().all():
            raise InputError(
                f"training went astray: {name} is no longer finite in float16, so no model was saved; "
                "train with a lower --lr (or --balance factors nearer 1) in another --out"
            )
