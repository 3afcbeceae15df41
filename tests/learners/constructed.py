"""A GPT-2 whose in-context learning is exactly a vector: one head, in one layer, adds the mean of the labels it saw.

Every embedding has mean 0 and the same norm, so that layer norms only scale. In layer ``LAYER`` one head looks at label
words alone (their score is 60 above all others'), whatever the query is, and writes mean(+1 for the first label, -1 for
the second) times one direction; without demonstrations there is nothing to look at and it writes 0. One layer further
up an MLP turns word and vector into an answer, and not linearly, so that no later layer has one vector for all queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from dualscope.models.model import Model
from dualscope.tasks import Task
from dualscope.tasks.sources import DataRow
from dualscope.tasks.task_config import TaskConfig
from tests.models.tiny import WORDS, tiny_tokenizer

LAYER, LAYERS, WIDTH, HEADS = 1, 4, 48, 4
LABELS = ("Negative", "Positive")
OTHER = ("Yes", "No")
TEXT = [f"w{i}" for i in range(40)]
SEEN, SIGN = (40, 41), (42, 43)  # pairs of dimensions: "this is a label", and which


def vector_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=256, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        hf.transformer.wte.weight.copy_(_embeddings())
        _head_that_sees_labels(hf.transformer.h[LAYER].attn, config.n_embd // HEADS)
        mlp = hf.transformer.h[LAYER + 1].mlp
        mlp.c_fc.weight.copy_(torch.randn_like(mlp.c_fc.weight) * 0.6)
        mlp.c_proj.weight.copy_(torch.randn_like(mlp.c_proj.weight) * 0.3)
        # Small, so that no answer is sure: of sure ones, whatever makes them less so would explain a part.
        hf.lm_head.weight.copy_(torch.randn_like(hf.lm_head.weight) * 0.1)
    return Model(hf, tiny_tokenizer(), name="a-vector")


def _embeddings() -> Tensor:
    table = torch.zeros(len(WORDS), WIDTH, dtype=torch.float64)
    for word in (*LABELS, *OTHER):
        table[WORDS.index(word), list(SEEN)] = torch.tensor([3.0, -3.0], dtype=torch.float64)
    for word, sign in zip(LABELS, (3.0, -3.0), strict=True):
        table[WORDS.index(word), list(SIGN)] = torch.tensor([sign, -sign], dtype=torch.float64)
    rest = torch.randn(len(WORDS), 40, dtype=torch.float64)
    rest -= rest.mean(1, keepdim=True)
    # So that all have the norm that a layer norm gives.
    left = (WIDTH - table.square().sum(1, keepdim=True)).sqrt()
    table[:, :40] = rest * left / rest.norm(dim=1, keepdim=True)
    return table


def _head_that_sees_labels(attention: Any, dim: int) -> None:
    weight, bias = attention.c_attn.weight, attention.c_attn.bias  # [in, 3 x width]
    bias[0] = 1.0  # the query of head 0 is the same for every token
    scale = dim**0.5 * 10  # times 6, what the two dimensions differ by
    weight[SEEN[0], WIDTH], weight[SEEN[1], WIDTH] = scale, -scale
    weight[SIGN[0], 2 * WIDTH], weight[SIGN[1], 2 * WIDTH] = 1.0, -1.0
    attention.c_proj.weight[0, 44:48] = torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64)


class _Rows:
    def __init__(self, texts: list[str], labels: list[int]) -> None:
        self._rows: list[DataRow] = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]

    def rows(self, split: str) -> list[DataRow]:
        return self._rows[:200] if split == "train" else self._rows[200:]

    def where(self, split: str) -> str:
        return f"made up: {split}"

    def file(self, split: str) -> None:
        return None


def vector_task(model: Model, seed: int = 0) -> Task:
    """Texts whose label is what the model says of their last word once the vector of two labels in three is there."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(TEXT, size=rng.integers(2, 6))) for _ in range(260)]
    said = _said(model, mean=1 / 3)
    return _task("vector", LABELS, texts, [said[text.split()[-1]] for text in texts])


def other_task(seed: int = 1) -> Task:
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(TEXT, size=3)) for _ in range(260)]
    return _task("other", OTHER, texts, [int(rng.integers(2)) for _ in texts])


def _task(name: str, labels: tuple[str, ...], texts: list[str], answers: list[int]) -> Task:
    config = TaskConfig.model_validate(
        {
            "name": name,
            "source": {"files": {"train": "train.jsonl", "evaluation": "evaluation.jsonl"}},
            "template": "{text}",
            "labels": list(labels),
        }
    )
    return Task(config, _Rows(texts, answers))


@torch.no_grad()
def _said(model: Model, mean: float) -> dict[str, int]:
    """The answer to every word, the vector added by hand."""
    hf = model.hf
    block = hf.transformer.h[LAYER]
    label = hf.transformer.wte.weight[WORDS.index(LABELS[0])]
    label = (label - label.mean()) / label.std(correction=0)
    value = label[SIGN[0]] - label[SIGN[1]]
    vector = mean * value * block.attn.c_proj.weight[0]

    def add(_: Any, __: Any, output: Any) -> Any:
        return (output[0] + vector, *output[1:]) if isinstance(output, tuple) else output + vector

    handle = block.register_forward_hook(add)
    try:
        found = {}
        for word in TEXT:
            logits = hf(torch.tensor([[1, WORDS.index(word)]])).logits[0, -1]
            found[word] = int(logits[[WORDS.index(label) for label in LABELS]].argmax())
        return found
    finally:
        handle.remove()
