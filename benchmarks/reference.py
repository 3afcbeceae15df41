"""The published way: one query at a time, the whole context again, eager attention, all logits."""

import json
import time
from typing import Any

import torch

from benchmarks.timing import wait
from dualscope.models import Model
from dualscope.tasks.lesson import Lesson


@torch.no_grad()
def reference_flow(model: Model, lesson: Lesson, queries: int) -> tuple[float, float]:
    """Seconds a query, and seconds a query for writing the same as nested lists to JSON.

    The unmodified Hugging Face model with ``output_attentions`` and ``output_hidden_states``; the attention outputs are
    taken from hooks, as the published code takes them.
    """
    hf = model.hf
    before = hf.config._attn_implementation
    hf.set_attn_implementation("eager")
    kept: list[torch.Tensor] = []
    handles = [
        module.get_submodule(model.family.output).register_forward_hook(lambda _m, _a, out: kept.append(out[0, -1]))
        for module in model.attentions
    ]
    spent, writing = 0.0, 0.0
    try:
        with model.running():
            for number in range(queries + 1):  # the first warms up
                tokens = torch.tensor([[*lesson.context, *lesson.queries[number % len(lesson.queries)]]])
                kept.clear()
                wait(model.device)
                start = time.perf_counter()
                out = hf(tokens.to(model.device), output_attentions=True, output_hidden_states=True, use_cache=False)
                record: dict[str, Any] = {
                    "attn_out": torch.stack(kept),
                    "attn_map": torch.stack([a[0, :, -1] for a in out.attentions]),
                    "hidden": torch.stack([h[0, -1] for h in out.hidden_states]),
                    "logits": out.logits[0, -1].log_softmax(-1),
                }
                record = {name: tensor.float().cpu() for name, tensor in record.items()}
                wait(model.device)
                middle = time.perf_counter()
                json.dumps({name: tensor.tolist() for name, tensor in record.items()})
                if number:
                    spent += middle - start
                    writing += time.perf_counter() - middle
    finally:
        for handle in handles:
            handle.remove()
        hf.set_attn_implementation(before)
    return spent / queries, writing / queries


@torch.no_grad()
def plain_batches(model: Model, lesson: Lesson) -> None:
    """The same batches as a zero-shot reading through the plain model with its default attention, no more."""
    from dualscope.models.reading.batches import batches_of

    with model.running():
        for batch in batches_of(model, lesson, None, None):
            model.hf(batch.tokens, use_cache=False, logits_to_keep=1)
