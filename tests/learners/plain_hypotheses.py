"""Task vectors and function vectors the plain way: one query at a time, the whole text, hooks, float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dualscope.tasks import Lesson
from tests.models.oracle import _LLAMA, PLACES, watch


def blocks_of(hf: Any) -> list[Any]:
    return list(hf.get_submodule(PLACES.get(hf.config.model_type, _LLAMA).blocks))


def projection(hf: Any, layer: int) -> Any:
    place = PLACES.get(hf.config.model_type, _LLAMA)
    return blocks_of(hf)[layer].get_submodule(place.attention).get_submodule(place.output)


@contextmanager
def residual_changed(hf: Any, layer: int, row: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[0, row] = change(hidden[0, row])
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    handle = blocks_of(hf)[layer].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def head_outputs(hf: Any, tokens: Sequence[int], heads: int) -> Tensor:
    """What each head of each layer hands over at the last token: [layers, heads, head_dim]."""
    found: list[Tensor] = []
    with ExitStack() as stack:
        for layer in range(len(blocks_of(hf))):
            handle = projection(hf, layer).register_forward_pre_hook(
                lambda _, args: found.append(args[0][0, -1].clone())
            )
            stack.callback(handle.remove)
        watch(hf, tokens)
    shape = len(found), heads, -1
    return torch.stack(found).view(shape)


@contextmanager
def head_replaced(hf: Any, layer: int, row: int, head: int, value: Tensor) -> Iterator[None]:
    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given = args[0].clone()
        given[0, row, head * len(value) : (head + 1) * len(value)] = value
        return given, *args[1:]

    handle = projection(hf, layer).register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def label_logprobs(hf: Any, lesson: Lesson, tokens: Sequence[int]) -> Tensor:
    """Mean log-probability of each label's tokens after a text: [classes]."""
    found = []
    for answer in lesson.answers:
        logits, _ = watch(hf, [*tokens, *answer])
        where = torch.arange(len(tokens) - 1, len(tokens) + len(answer) - 1)
        found.append(logits.log_softmax(-1)[where, torch.tensor(answer)].mean())
    return torch.stack(found)


def steered(hf: Any, lesson: Lesson, layer: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Label log-probabilities of every query without a context, the residual after a layer changed."""
    rows = []
    for prompt in lesson.queries:
        tokens = [*lesson.bos, *prompt]
        with residual_changed(hf, layer, len(tokens) - 1, change):
            rows.append(label_logprobs(hf, lesson, tokens))
    return torch.stack(rows)


def mean_residual(hf: Any, before: Sequence[int], prompts: Sequence[Sequence[int]], layer: int) -> Tensor:
    rows = []
    for prompt in prompts:
        _, layers = watch(hf, [*before, *prompt])
        rows.append(layers[layer].residual[-1])
    return torch.stack(rows).mean(0)


def written(hf: Any, layer: int, head: int, output: Tensor) -> Tensor:
    """What a head writes: the gradient of the output projection with respect to that head's output, times it."""
    module = projection(hf, layer)
    width = module.weight.shape[1] if isinstance(module, nn.Linear) else module.weight.shape[0]
    given = torch.zeros(width, dtype=output.dtype, requires_grad=True)
    jacobian: Tensor = torch.autograd.functional.jacobian(module, given)
    return jacobian[:, head * len(output) : (head + 1) * len(output)] @ output


def indirect_effect(
    hf: Any,
    lesson: Lesson,
    contexts: Sequence[Sequence[int]],
    prompts: Any,
    labels: Any,
    means: Tensor,
    layer: int,
    head: int,
) -> float:
    """Over prompts each with its own context: the gain of the right label's probability among the classes."""
    total = 0.0
    for context, prompt, label in zip(contexts, prompts, labels, strict=True):
        tokens = [*context, *prompt]
        before = label_logprobs(hf, lesson, tokens).softmax(-1)[label]
        with head_replaced(hf, layer, len(tokens) - 1, head, means[layer, head]):
            after = label_logprobs(hf, lesson, tokens).softmax(-1)[label]
        total += float(after - before)
    return total / len(prompts)
