"""What a learner left at the read position of every query."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dualscope.models.files.tensor_stream import stream
from dualscope.models.reading.mapped import is_in_file


@dataclass(frozen=True, repr=False)
class Trace:
    """Everything that metrics see of a learner. All tensors live on one device, but for large ones that memory has no
    room for: these are in files (`dualscope.models.reading.mapped`), and a part of one is taken to ``device``.

    Scores are right-aligned: a query's last token stands in the last column, and the columns before its first
    token are NaN, so that traces of the same queries line up whatever stood before the query.

    ``label_logprobs`` are log-probabilities among all tokens, so that their exponentials sum to less than 1 over the
    classes; ``label_logprobs_at_layer`` are normalised over the classes (they sum to 1), however many tokens a label
    has: a layer's read-out needs no more of the unembedding than the labels' rows.

    >>> from dualscope import Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=4, queries=6), model.tokenizer, model.max_positions)
    >>> trace = model.read(lesson, model.prefix(lesson.context))
    >>> trace.attn_out.shape, trace.label_logprobs.shape
    (torch.Size([6, 6, 192]), torch.Size([6, 2]))
    """

    attn_out: Tensor  # [queries, layers, width]
    attn_scores: Tensor  # [queries, layers, heads, tokens]
    lengths: Tensor  # [queries]
    residual: Tensor  # [queries, layers, width]
    label_logprobs: Tensor  # [queries, classes]: the mean log-probability of each label's tokens, of all tokens
    labels: Tensor  # [queries]
    query_ids: tuple[str, ...]
    label_logprobs_at_layer: Tensor | None = (
        None  # [queries, layers, classes]: the same from each layer, of the classes
    )
    first_window: int | None = None  # how many tokens layer 0 sees, its own among them; None: all
    extras: dict[str, Tensor] = field(default_factory=dict)  # what was asked for beyond the above

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.lengths.device

    @property
    def is_in_files(self) -> bool:
        """Whether memory has no room for all of it."""
        return any(map(is_in_file, (self.attn_out, self.attn_scores, self.residual, *self.extras.values())))

    @property
    def predictions(self) -> Tensor:
        """The most probable class of every query: [queries]."""
        return self.label_logprobs.argmax(-1)

    @property
    def correct(self) -> Tensor:
        """Which queries are predicted correctly: [queries], boolean."""
        return self.predictions == self.labels

    def __repr__(self) -> str:
        """One line: its tensors are looked at by name."""
        queries, layers, width = self.attn_out.shape
        classes = self.label_logprobs.shape[-1]
        more = f", also {', '.join(self.extras)}" if self.extras else ""
        return f"Trace({queries} queries, {layers} layers of width {width}, {classes} classes{more})"

    def __len__(self) -> int:
        return len(self.labels)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Trace":
        """The same trace with a function applied to each of its tensors."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors: dict[str, Any] = {n: change(value) for n, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **tensors, extras={name: change(value) for name, value in self.extras.items()})

    def to(self, device: str | torch.device) -> "Trace":
        return self.map(lambda tensor: tensor.to(device))

    def save(self, path: Path | str) -> None:
        """As one safetensors file, some queries after others; query ids, which are text, go to its header."""
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)} | {
            f"extras.{name}": value for name, value in self.extras.items()
        }
        header = {"query_ids": "\n".join(self.query_ids)}
        if self.first_window is not None:
            header["first_window"] = str(self.first_window)
        stream(tensors, path, header)

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        """What `save` wrote."""
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            header = file.metadata() or {}
        ids, window = tuple(header["query_ids"].split("\n")), header.get("first_window")
        extras = {name.removeprefix("extras."): tensors.pop(name) for name in list(tensors) if "." in name}
        return cls(**tensors, query_ids=ids, first_window=None if window is None else int(window), extras=extras)
