"""How much memory an episode takes, by part, from shapes alone. No torch.

The formulas count what our own passes hold at their worst moment; `python -m benchmarks.scale` sets them beside
measured peaks, and the tests hold them to those of five shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

FULL = 4  # bytes of what is kept in float32 whatever the weights have: changes, traces, log-probabilities
STEP = 16  # demonstrations are filled up to a multiple of so many tokens
# Parameters: of larger models the training is not repeated to see what rounding does to it.
TRAINED_TWICE = 10**9
BATCH_TOKENS = {"cpu": 4096, "cuda": 8192}  # about as many are read at once, however many queries they are
WIDENED = {"cpu": 2**18, "cuda": 2**24}  # numbers of a tensor that metrics look at at once, in float64
HELD = 9  # such tensors at once, at most
KEPT = 64  # a tensor of a trace may take this part of the memory beside the weights; a larger one goes to a file
DRAWS_SHARE = 0.5  # of the memory beside the weights, for draws that are learned from at once
LIBRARIES = 600 * 2**20  # of a process that computes on the CPU: Python, torch, transformers, Arrow


@dataclass(frozen=True)
class Shape:
    """What of a model's size matters for memory."""

    parameters: int
    layers: int
    width: int
    heads: int
    kv_width: int  # of the keys of all heads; the values' is the same
    inner: int  # of the wide layer of the MLP
    vocabulary: int

    @property
    def learned(self) -> int:
        """Weights that learn: those of keys and values."""
        return 2 * self.layers * self.kv_width * self.width

    @classmethod
    def of(cls, config: Mapping[str, Any], parameters: int) -> Shape:
        """From a config.json (or its text part) and the number of weights.

        >>> Shape.of({"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 50}, 1000)
        Shape(parameters=1000, layers=2, width=8, heads=2, kv_width=8, inner=32, vocabulary=50)
        """
        inner = config.get("text_config")
        told = inner if isinstance(inner, Mapping) else config

        def first(*names: str, default: int) -> int:
            found = (told[key] for key in names if isinstance(told.get(key), int))
            return next((value for value in found if value > 0), default)

        width = first("hidden_size", "n_embd", "d_model", default=1)
        heads = first("num_attention_heads", "n_head", "attention_heads", "num_heads", default=1)
        head = first("head_dim", default=max(1, width // heads))
        return cls(
            parameters,
            first("num_hidden_layers", "n_layer", "num_layers", default=1),
            width,
            heads,
            first("num_key_value_heads", default=heads) * head,
            first("intermediate_size", "n_inner", "ffn_dim", default=4 * width),
            first("vocab_size", default=1),
        )


@dataclass(frozen=True)
class TrainingDemand:
    """How a learner trains, as far as memory is concerned: keys and values on one demonstration a step, unless said."""

    everything: bool = False  # all weights learn, and in place
    adam: bool = False  # what it keeps of gradients: three numbers for each weight that learns
    queries: int = 0  # so many a step, in place of a demonstration; only their last tokens are unembedded


@dataclass(frozen=True)
class Demand:
    """What is asked of a model in one episode."""

    queries: int
    query_tokens: int  # of the longest query
    context_tokens: int = 0
    demonstration_tokens: int = 0  # of the longest demonstration; 0: nothing is trained
    traces: int = 3  # that are held at once: zero-shot, in-context, and the learner's own
    changes: int = 1  # of weights, held at once: the learner's own, its second training's, other learners'
    others: int = 0  # of these, other learners': changes of keys and values
    training: TrainingDemand = TrainingDemand()
    device: Literal["cpu", "cuda"] = "cuda"  # a GPU keeps changes beside the weights, and records its steps
    memory: int | None = None  # bytes that the device has in all; None: not known, and all traces are held in it
    draws: int = 1  # of an intervention, learned from at once where memory has room for as many

    @property
    def batch(self) -> int:
        """Queries that are read at once."""
        return max(1, min(self.queries, BATCH_TOKENS[self.device] // max(1, self.query_tokens)))


@dataclass(frozen=True)
class Footprint:
    """Bytes, by part."""

    weights: int
    context: int  # its keys and values
    changes: int  # of the weights that learn
    gradients: int
    activations: int  # of a batch that is read, of a step, or of the metrics: whichever needs most
    graphs: int  # the steps of a training run, recorded; gone before queries are read
    traces: int  # what of them is in memory
    libraries: int
    files: int = 0  # what of the traces is in files, of which a layer at a time is looked at: not memory

    @property
    def total(self) -> int:
        """At the worst moment: graphs and what is read are never there together."""
        return sum(self.parts.values()) - min(self.activations, self.graphs)

    @property
    def parts(self) -> dict[str, int]:
        """Of the memory."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "files"}


def footprint(shape: Shape, itemsize: int, task: Demand) -> Footprint:
    """Of one learner on one episode, of a model whose weights have ``itemsize`` bytes.

    >>> shape = Shape(parameters=10**9, layers=24, width=2048, heads=32, kv_width=2048, inner=8192, vocabulary=50_000)
    >>> found = footprint(shape, 2, Demand(queries=100, query_tokens=50, demonstration_tokens=50))
    >>> found.weights, found.changes  # 24 layers, keys and values, 2048 x 2048, float32
    (2000000000, 805306368)
    """
    wide, on_gpu = max(itemsize, FULL), task.device == "cuda"
    how = task.training
    learned = shape.parameters if how.everything else shape.learned
    trains = task.demonstration_tokens > 0
    # There is a copy of the weights too, to put them back.
    in_place = trains and (how.everything or not on_gpu) and itemsize >= FULL
    tokens = how.queries * task.query_tokens or task.demonstration_tokens
    step = training_bytes(shape, itemsize, -(-tokens // STEP) * STEP, how.queries or None) if trains else 0
    own, kept = task.changes - task.others, 3 * how.adam + (in_place or how.adam)
    weights = shape.parameters * itemsize
    outputs, scores = (
        task.queries * shape.layers * size * wide for size in (shape.width, shape.heads * task.query_tokens)
    )
    tensors = (outputs, outputs, scores)  # the second one: the residual stream
    limit = sum(tensors) if task.memory is None else largest_tensor(task.memory, weights)
    in_memory = sum(size for size in tensors if size <= limit)
    work = max(reading_bytes(shape, itemsize, task), metric_bytes(shape, task))
    draw = DrawBytes.of(shape, itemsize, how if trains else None, tokens, task.context_tokens)
    room = draw.total * task.draws / DRAWS_SHARE if task.memory is None else task.memory - weights
    at_once = draws_that_fit(task.draws, draw.total, int(room)) if task.draws > 1 else 0
    work, step = max(work, at_once * draw.work), max(step, at_once * draw.work if trains else 0)
    return Footprint(
        weights=weights,
        context=max(1, at_once) * draw.context,
        changes=trains * wide * (own * learned + task.others * shape.learned)
        + in_place * itemsize * learned
        + at_once * draw.change,
        gradients=trains * learned * wide * kept,
        activations=work if on_gpu else max(work, step),
        graphs=step if on_gpu else 0,
        traces=task.traces * in_memory,
        libraries=0 if on_gpu else LIBRARIES,
        files=task.traces * (sum(tensors) - in_memory),
    )


def draws_that_fit(wanted: int, each: int, room: int) -> int:
    """Into how large groups draws are put that are learned from at once, of nearly equal size.

    ``each`` is the bytes that one of them needs, ``room`` what the device has beside the weights.

    >>> draws_that_fit(12, each=1, room=100), draws_that_fit(12, each=10, room=100), draws_that_fit(12, 100, 100)
    (12, 4, 1)
    """
    most = max(1, min(wanted, int(DRAWS_SHARE * room // max(1, each))))
    return -(-wanted // -(-wanted // most))


@dataclass(frozen=True)
class DrawBytes:
    """What each of several draws that are learned from at once needs."""

    change: int  # of the weights that learn; of all weights also those that move, and their gradients
    context: int  # its keys and values
    work: int  # of its share of a step, or of the encoding of its context: whichever needs most

    @classmethod
    def of(cls, shape: Shape, itemsize: int, how: TrainingDemand | None, tokens: int, context_tokens: int) -> DrawBytes:
        """``how`` it is trained on, if at all; ``tokens`` of its longest training sequence."""
        wide = max(itemsize, FULL)
        learned = 3 * shape.parameters if how and how.everything else shape.learned
        encoding = context_tokens * (10 * shape.width + 3 * shape.inner) * wide
        return cls(
            change=learned * wide if how else 0,
            context=2 * shape.layers * shape.kv_width * context_tokens * itemsize,
            work=max(training_bytes(shape, itemsize, tokens) if how else 0, encoding),
        )

    @property
    def total(self) -> int:
        return self.change + self.context + self.work


def largest_tensor(memory: int, weights: int) -> int:
    """Bytes of one tensor of a trace that is still kept in memory: of what the device has, never of what is free.

    >>> largest_tensor(memory=64 * 2**30, weights=32 * 2**30) == 2**29
    True
    """
    return max(memory - weights, memory // 4) // KEPT


def reading_bytes(shape: Shape, itemsize: int, task: Demand) -> int:
    """A batch that is read: one block's tensors at a time, what is recorded of every layer, and the logits."""
    wide = max(itemsize, FULL)
    block = max(2 * shape.width + 3 * shape.inner, 10 * shape.width) * itemsize
    norms = 2 * shape.width * wide  # are computed in float32
    recorded = shape.layers * (2 * shape.width + shape.heads * task.query_tokens) * (itemsize + wide)
    logits = shape.vocabulary * (itemsize + 2 * wide)
    return task.batch * (task.query_tokens * (block + norms) + recorded + logits)


def metric_bytes(shape: Shape, task: Demand) -> int:
    """Metrics take layers by layers, as many as make a chunk, in float64."""
    layer = task.queries * max(shape.width, shape.heads * task.query_tokens)
    return HELD * 8 * min(shape.layers * layer, max(layer, WIDENED[task.device]))


def training_bytes(shape: Shape, itemsize: int, tokens: int, unembedded: int | None = None) -> int:
    """A step on one demonstration: what every layer keeps for the backward pass, and the logits (of all tokens, if it
    is not said of how many).
    """
    wide = max(itemsize, FULL)
    norms = 2 * shape.width * wide
    attention = (4 * shape.width + 4 * shape.kv_width) * itemsize
    mlp = 3 * shape.inner * itemsize
    # Errors and inputs, and the same stacked for their norms.
    outer = 2 * (2 * shape.kv_width + shape.width) * wide
    logits = shape.vocabulary * (2 * itemsize + 3 * wide)
    rows = tokens if unembedded is None else unembedded
    return tokens * shape.layers * (norms + attention + mlp + outer) + rows * logits
