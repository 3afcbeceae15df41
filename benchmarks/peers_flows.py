"""One episode read by one tool: `benchmarks.peers` starts this file by its path in the tool's own environment.

python -P benchmarks/peers_flows.py FLOW EPISODE.json OUT.json

Every flow gives the same: of each query, after the demonstrations, the labels' log-probabilities and the attention
output of every layer at the last token. It needs torch, transformers and the tool; `dualscope` needs dualscope.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BATCH = 16
Read = Callable[[Sequence[Sequence[int]]], tuple[Tensor, Tensor]]
"""Whole prompts in; log-probabilities of the next token's labels and attention outputs [queries, layers, width] out."""


def module(folder: str, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    ).eval()


def tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def batches(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts filled up at their ends, where nothing that is read can see it, and the places of their last tokens."""
    for first in range(0, len(prompts), BATCH):
        some = prompts[first : first + BATCH]
        ids = torch.zeros(len(some), max(map(len, some)), dtype=torch.long)
        for row, prompt in zip(ids, some, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        yield ids, torch.tensor([len(prompt) - 1 for prompt in some])


def published(folder: str, labels: list[int]) -> Read:
    """One query at a time, the whole context before each; all logits, all attention maps, all hidden states."""
    hf = module(folder, "eager")
    caught: list[Tensor] = []
    for block in hf.model.layers:
        block.self_attn.o_proj.register_forward_hook(lambda _module, _inputs, out: caught.append(out))

    def read(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        found, outs = [], []
        for prompt in prompts:
            caught.clear()
            result = hf(torch.tensor([prompt]), output_attentions=True, output_hidden_states=True)
            found.append(result.logits[0, -1].log_softmax(-1)[labels])
            outs.append(torch.stack([out[0, -1] for out in caught]))
        return torch.stack(found), torch.stack(outs)

    return read


def batched(folder: str, labels: list[int]) -> Read:
    """Plain transformers with a hook a layer, many queries a batch, the whole context before each."""
    hf = module(folder)
    last: Tensor
    caught: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, out: Tensor) -> None:
        caught.append(out[torch.arange(len(last)), last])

    for block in hf.model.layers:
        block.self_attn.o_proj.register_forward_hook(keep)

    def read(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        nonlocal last
        found, outs = [], []
        for ids, places in batches(prompts):
            last = places
            caught.clear()
            hidden = hf.model(ids).last_hidden_state[torch.arange(len(ids)), last]
            found.append(hf.lm_head(hidden).log_softmax(-1)[:, labels])
            outs.append(torch.stack(caught, 1))
        return torch.cat(found), torch.cat(outs)

    return read


def transformer_lens(folder: str, labels: list[int]) -> Read:
    """TransformerLens with a hook a layer on `attn.hook_out`, many queries a batch."""
    from transformer_lens.model_bridge import TransformerBridge

    bridge: Any = TransformerBridge.boot_transformers(
        folder, hf_model=module(folder, "eager"), tokenizer=tokenizer(folder), device="cpu"
    )
    layers = bridge.cfg.n_layers

    def read(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        found, outs = [], []
        for ids, last in batches(prompts):
            rows, caught = torch.arange(len(ids)), {}

            def keep(out: Tensor, hook: Any, rows: Any = rows, last: Any = last, caught: Any = caught) -> None:
                caught[hook.name] = out[rows, last]

            names = [f"blocks.{layer}.attn.hook_out" for layer in range(layers)]
            logits = bridge.run_with_hooks(ids, return_type="logits", fwd_hooks=[(name, keep) for name in names])
            found.append(logits[rows, last].log_softmax(-1)[:, labels])
            outs.append(torch.stack([caught[name] for name in names], 1))
        return torch.cat(found), torch.cat(outs)

    return read


def nnsight(folder: str, labels: list[int]) -> Read:
    """nnsight with a saved value a layer, many queries a batch."""
    from nnsight import LanguageModel

    model: Any = LanguageModel(module(folder), tokenizer=tokenizer(folder))

    def read(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        found, outs = [], []
        for ids, last in batches(prompts):
            rows = torch.arange(len(ids))
            with model.trace({"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
                caught = [block.self_attn.o_proj.output[rows, last].save() for block in model.model.layers].save()
                logits = model.lm_head.output[rows, last].save()
            found.append(logits.log_softmax(-1)[:, labels])
            outs.append(torch.stack(list(caught), 1))
        return torch.cat(found), torch.cat(outs)

    return read


FLOWS: dict[str, Callable[[str, list[int]], Read]] = {
    "published": published,
    "batched": batched,
    "transformer_lens": transformer_lens,
    "nnsight": nnsight,
}


def dualscope(episode: dict[str, Any]) -> Callable[[int], tuple[Tensor, Tensor]]:
    """The context encoded once, the queries after it; it also notes attention scores and residuals."""
    from dualscope import Bench, Episode, Model, Task, make_lesson

    model = Model.load(episode["model"], device="cpu")
    task = Task.load(episode["task"], data=episode["data"])
    drawn = Episode.draw(task, shots=episode["shots"], seed=0, queries=episode["queries"])
    lesson = make_lesson(drawn, model.tokenizer, model.max_positions)

    def read(count: int) -> tuple[Tensor, Tensor]:
        trace = Bench(model, lesson.only(range(count))).in_context
        return trace.label_logprobs, trace.attn_out

    return read


@torch.no_grad()
def main() -> None:
    flow, path, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    episode = json.loads(path.read_text())
    torch.set_num_threads(episode["threads"])
    prompts = episode["prompts"]
    if flow == "dualscope":
        work = dualscope(episode)
    else:
        read = FLOWS[flow](episode["model"], episode["label_ids"])

        def work(count: int) -> tuple[Tensor, Tensor]:
            return read(prompts[:count])

    work(2)  # to warm up
    began, busy = time.perf_counter(), time.process_time()
    logprobs, outs = work(len(prompts))
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {"seconds": seconds, "processor": busy, "peak_mb": peak / 1024}
    result |= {"logprobs": logprobs.tolist(), "norms": outs.norm(dim=-1).tolist()}
    out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
