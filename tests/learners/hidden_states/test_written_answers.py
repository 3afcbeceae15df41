"""A probe's and a kernel's answers where attention writes, against one query at a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualscope.learners import Bench
from dualscope.learners.hidden_states.kernel_regression import kernel_regression
from dualscope.learners.hidden_states.probe import softmax_regression
from dualscope.learners.hidden_states.written_answers import WrittenAnswers
from dualscope.learners.plants import planted
from tests.learners import plain_hypotheses as plain
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading

RATE = 2.0


def streams(bench: Bench, prompts: Any) -> Tensor:
    """After every layer at the last token of each text: [layers, texts, width]."""
    texts = [reading.watch(bench.model.hf, [*bench.lesson.bos, *prompt])[1] for prompt in prompts]
    return torch.stack([torch.stack([layer.residual[-1] for layer in layers]) for layers in texts], 1)


@pytest.mark.parametrize("of", ["probe", "kernel"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_by_loops(family: str, of: str) -> None:
    bench = tiny_bench(family, shots=5, queries=3)
    hf, lesson = bench.model.hf, bench.lesson
    found = bench.learned("shallow-written", of=of, rate=RATE).trace
    shown, asked = streams(bench, [d.prompt for d in lesson.training]), streams(bench, lesson.queries)
    labels = torch.tensor([d.label_index for d in lesson.training])
    for row, prompt in enumerate(lesson.queries):
        text, writes = [*lesson.bos, *prompt], [torch.zeros_like(asked[0, 0])]
        for below in range(bench.model.n_layers - 1):
            x, q = shown[below], asked[below, row][None]
            if of == "probe":
                answer = softmax_regression(x[None], labels, q[None], 2, steps=100, lr=1.0)[0, 0].exp()
            else:
                answer = kernel_regression(x, labels, q, 2, temperature=0.1)[0].exp()
            point = q[0].clone().requires_grad_()
            said = reading.readout(hf, point).log_softmax(-1)
            loss = -torch.stack([answer[c] * said[tokens[0]] for c, tokens in enumerate(lesson.answers)]).sum()
            size = asked[below].square().mean()
            writes.append(-RATE * size * torch.autograd.grad(loss, point)[0])
        with ExitStack() as stack:
            for layer, write in enumerate(writes):

                def hook(_: nn.Module, __: Any, output: Tensor, write: Tensor = write, at: int = len(text)) -> Tensor:
                    changed = output.clone()
                    changed[0, at - 1] += write
                    return changed

                stack.callback(plain.projection(hf, layer).register_forward_hook(hook).remove)
            torch.testing.assert_close(
                found.label_logprobs[row], plain.label_logprobs(hf, lesson, text), rtol=1e-7, atol=1e-7
            )
            outputs = torch.stack([layer.attn_out[-1] for layer in reading.watch(hf, text)[1]])
            torch.testing.assert_close(found.attn_out[row], outputs, rtol=1e-7, atol=1e-7)


def test_the_rate_is_chosen_and_controls_and_plants_are_there() -> None:
    model = wrapped("gpt2")
    other = tiny_lesson(model, task=tiny_task("second", ("Yes", "No"), seed=9, template="Question: {text} Answer:"))
    bench = Bench(model, tiny_lesson(model, shots=6, queries=4, task=tiny_task(n=200)), other=other)
    own = bench.learned("shallow-written")
    assert own.choice is not None
    assert set(own.choice.settings) == {"rate"}
    assert isinstance(own.change, WrittenAnswers)
    for control in ("random-labels", "other-task", "redraw", "random-update"):
        found = bench.learned("shallow-written", control=control)
        assert not torch.allclose(found.trace.attn_out, own.trace.attn_out, atol=1e-6), control
    random = bench.learned("shallow-written", control="random-update").change
    assert isinstance(random, WrittenAnswers)
    torch.testing.assert_close(random.gained.norm(dim=-1), own.change.gained.norm(dim=-1))
    assert not torch.equal(planted(bench, own.change).attn_out, own.trace.attn_out)
