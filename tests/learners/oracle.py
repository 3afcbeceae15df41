"""Learners the plain way: autograd over a copy of the whole model, in float64, one parameter at a time."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from dualscope.tasks import Lesson
from tests.models import oracle as reading
from tests.models.textbook import Layer

FAMILIES = ("gpt2", "llama", "gemma2", "xglm")


def sequences(lesson: Lesson) -> list[tuple[list[int], int]]:
    """Each demonstration's training sequence, and where its label starts."""
    found = []
    for d in lesson.training:
        tokens = [*lesson.bos, *d.prompt, *d.label]
        found.append((tokens, len(tokens) - len(d.label)))
    return found


def _columns(cut: slice, weight: Tensor) -> Tensor:
    """Of a projection that is stored as [in, out]."""
    return weight[:, cut].T


class Copy:
    """A copy of a module whose key and value weights move by explicit steps."""

    def __init__(self, hf: nn.Module) -> None:
        self.hf: Any = copy.deepcopy(hf).eval().requires_grad_(True)
        self.before = {name: value.clone() for name, value in self.named().items()}

    def named(self) -> dict[str, Tensor]:
        """Canonical name -> [out, in] or [out], detached views of the weights."""
        return {name: view(parameter.detach()) for name, (parameter, view) in self.table().items()}

    def table(self) -> dict[str, tuple[nn.Parameter, Callable[[Tensor], Tensor]]]:
        found: dict[str, tuple[nn.Parameter, Callable[[Tensor], Tensor]]] = {}
        if self.hf.config.model_type == "gpt2":
            width = self.hf.config.n_embd
            for i, block in enumerate(self.hf.transformer.h):
                for n, role in ((1, "key"), (2, "value")):
                    cut = slice(n * width, (n + 1) * width)
                    fused, at = block.attn.c_attn, f"layers.{i}.{role}"
                    found[f"{at}.weight"] = (fused.weight, partial(_columns, cut))
                    found[f"{at}.bias"] = (fused.bias, itemgetter(cut))
            return found
        for i, block in enumerate(self.hf.model.layers):
            for name, role in (("k_proj", "key"), ("v_proj", "value")):
                for kind, parameter in getattr(block.self_attn, name).named_parameters():
                    found[f"layers.{i}.{role}.{kind}"] = (parameter, lambda w: w)
        return found

    def run(self, tokens: Sequence[int]) -> tuple[Tensor, list[Layer]]:
        with torch.enable_grad():
            return reading.watch_with_gradients(self.hf, tokens)

    def gradients(self, loss: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        table = self.table()
        found = torch.autograd.grad(loss, [table[name][0] for name in names], retain_graph=True)
        return {name: table[name][1](g) for name, g in zip(names, found, strict=True)}

    def step(self, gradients: dict[str, Tensor], lr: float) -> None:
        named = self.named()
        for name, gradient in gradients.items():
            named[name] -= lr * gradient

    def delta(self) -> dict[str, Tensor]:
        return {name: value - self.before[name] for name, value in self.named().items()}


def cross_entropy(logits: Tensor, tokens: Sequence[int], first: int) -> Tensor:
    """Mean over the tokens from ``first`` on, each predicted by the row before it."""
    terms = [-logits[t - 1].log_softmax(-1)[tokens[t]] for t in range(first, len(tokens))]
    return sum(terms[1:], terms[0]) / len(terms)


def worst(found: Any, expected: dict[str, Tensor]) -> float:
    """The largest relative error over the weights; weights that must not move must be absent or rounding.

    Without rotary positions a key bias moves all of a row's scores alike, so its gradient is zero but for rounding:
    an error counts relative to a millionth of the whole change at least.
    """
    whole = torch.cat([value.flatten() for value in expected.values()]).norm()
    errors = []
    for name, value in expected.items():
        if value.abs().max() == 0:
            assert name not in found or found[name].norm() <= 1e-12 * whole, name
        else:
            errors.append(float((found[name] - value).norm() / torch.maximum(value.norm(), 1e-6 * whole)))
    assert errors
    return max(errors)


def gd(hf: nn.Module, lesson: Lesson, lr: float, names: Sequence[str] | None = None, label: bool = False) -> Copy:
    """Sequential SGD, one pass."""
    model = Copy(hf)
    for tokens, label_start in sequences(lesson):
        logits, _ = model.run(tokens)
        loss = cross_entropy(logits, tokens, label_start if label else max(len(lesson.bos), 1))
        model.step(model.gradients(loss, names or list(model.table())), lr)
    return model


def said(hf: Any, layer: int, layers: list[Layer], inputs: list[Tensor], added: list[Tensor], readout: str) -> Tensor:
    """What a layer's own loss looks at: logits [tokens, vocabulary]."""
    hidden = layers[layer].residual if readout == "block" else inputs[layer] + added[layer]
    return reading.readout(hf, hidden)


class LocalCopy(Copy):
    """A copy whose layers each learn from their own loss.

    Nothing is detached: the input of a block does not depend on the block's own weights, so the gradient of its
    loss with respect to them is the same.
    """

    def local(
        self, tokens: Sequence[int], readout: str, shortcuts: Sequence[Callable[[Tensor], Tensor]] = ()
    ) -> list[Tensor]:
        """Every layer's logits [tokens, vocabulary]."""
        blocks = self.hf.transformer.h if self.hf.config.model_type == "gpt2" else self.hf.model.layers
        inputs: list[Tensor] = []
        added: list[Tensor] = []
        handles = []
        for block in blocks:
            handles.append(block.register_forward_pre_hook(lambda _, a: inputs.append(a[0][0])))
            if self.hf.config.model_type == "gemma2":  # a norm stands between attention and the residual stream
                adds, cut = block.post_attention_layernorm, lambda o: o[0]
            else:
                adds, cut = block.attn if hasattr(block, "attn") else block.self_attn, lambda o: o[0][0]
            handles.append(adds.register_forward_hook(lambda _, __, o, c=cut: added.append(c(o))))
        try:
            _, layers = self.run(tokens)
        finally:
            for handle in handles:
                handle.remove()
        found = [said(self.hf, layer, layers, inputs, added, readout) for layer in range(len(blocks))]
        for layer, shortcut in enumerate(shortcuts):
            found[layer] = reading.readout(self.hf, shortcut(layers[layer].residual))
        return found

    def names(self, layer: int) -> list[str]:
        return [name for name in self.table() if name.startswith(f"layers.{layer}.")]


def lcgd(
    hf: Any,
    lesson: Lesson,
    lr: float,
    readout: str = "block",
    space: str = "vocabulary",
    schedule: str = "parallel",
    granularity: str = "demonstration",
    adjust: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda gradients: gradients,
    depth: int = 1,
    shortcuts: Sequence[Callable[[Tensor], Tensor]] = (),
) -> LocalCopy:
    model = LocalCopy(hf)
    among = sorted({token for answer in lesson.answers for token in answer})
    steps = []
    for tokens, label in sequences(lesson):
        first = label if space == "labels" else max(len(lesson.bos), 1)
        ends = range(first, len(tokens)) if granularity == "token" else [len(tokens) - 1]
        steps += [(tokens[: end + 1], end if granularity == "token" else first) for end in ends]
    count = hf.config.num_hidden_layers

    def loss_of(layer: int, tokens: Sequence[int], first: int) -> Tensor:
        logits = model.local(tokens, readout, shortcuts)[layer]
        targets = list(tokens)
        if space == "labels":
            logits = logits[:, among]
            targets = [among.index(t) if t in among else -1 for t in tokens]
        return cross_entropy(logits, targets, first)

    if schedule == "greedy":
        for layer in range(count):
            before = float("inf")
            for _ in range(20):
                total = 0.0
                for tokens, first in steps:
                    loss = loss_of(layer, tokens, first)
                    model.step(adjust(model.gradients(loss, model.names(layer))), lr)
                    total += float(loss.detach())
                if total > 0.99 * before:
                    break
                before = total
        return model
    for tokens, first in steps:
        gradients: dict[str, Tensor] = {}
        for layer in range(count):
            found: dict[str, Tensor] = {}
            for above in range(layer, min(layer + depth, count)):  # every loss by itself
                own = model.gradients(loss_of(above, tokens, first), model.names(layer))
                found = {name: found[name] + own[name] if found else own[name] for name in own}
            if schedule == "sequential":
                model.step(adjust(found), lr)
            gradients |= found
        if schedule == "parallel":
            model.step(adjust(gradients), lr)
    return model
