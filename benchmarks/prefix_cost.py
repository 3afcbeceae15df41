"""What reading costs on this machine: in-context, zero-shot, and the plain model on the same batches.

    python -m benchmarks.prefix_cost [--rounds 7] [--threads N]

A random GPT-2 of 10 layers and width 384 with 2,048 positions; 32 demonstrations of about 40 tokens; 500 queries
with the lengths that 500 queries of Subj have. The encoding of the context is part of the in-context time. Each
of the three is timed in every round, and the fastest round counts, because other work on the machine only adds.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dualscope.models import Model
from dualscope.models.reading.batches import batches_of
from dualscope.models.reading.memory import in_words
from dualscope.tasks.lesson import DemonstrationTokens, Lesson

# How many of 500 queries of Subj have 14, 15, ... tokens in a vocabulary of 8,192 pieces.
# fmt: off
COUNTS = [1, 4, 5, 11, 9, 16, 14, 17, 13, 15, 19, 17, 13, 17, 13, 17, 22, 13, 17, 18, 14, 11, 13, 11, 11, 4, 5, 8,
          11, 16, 12, 12, 7, 12, 8, 5, 7, 4, 11, 1, 2, 2, 5, 4, 1, 2, 1, 4, 2, 2, 0, 1, 1, 1, 0, 1, 2, 1, 0, 0, 2,
          1, 1, 1, 0, 2, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]
# fmt: on
VOCABULARY = 8192


def build_model() -> Model:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=2048, n_embd=384, n_layer=10, n_head=6, bos_token_id=0, eos_token_id=2
    )
    return Model(GPT2LMHeadModel(config).eval(), None, name="random-gpt2")


def build_lesson(seed: int = 0) -> Lesson:
    draw = np.random.default_rng(seed)

    def words(n: int) -> tuple[int, ...]:
        return tuple(int(token) for token in draw.integers(3, VOCABULARY, n))

    lengths = draw.permutation(np.repeat(np.arange(14, 14 + len(COUNTS)), COUNTS))
    answers = ((3,), (4,))
    context: tuple[int, ...] = (0,)
    demonstrations = []
    for i in range(32):
        prompt = words(38)  # with its label and the separator, 40
        demonstrations.append(DemonstrationTokens(f"train:{i}", i % 2, prompt, answers[i % 2], len(context)))
        context += (*prompt, *answers[i % 2], 2)
    return Lesson(
        episode=None,  # type: ignore[arg-type]
        bos=(0,),
        separator=(2,),
        demonstrations=tuple(demonstrations),
        training=tuple(demonstrations),
        context=context,
        queries=tuple(words(int(n)) for n in lengths),
        answers=answers,
        labels=tuple(i % 2 for i in range(len(lengths))),
        query_ids=tuple(map(str, range(len(lengths)))),
        read_at="prompt-end",
        shots=32,
        shots_used=32,
    )


@torch.no_grad()
def plain(model: Model, lesson: Lesson) -> None:
    """The unmodified module on the batches that zero-shot reading makes, its own attention, last logits only."""
    for batch in batches_of(model, lesson, None, None):
        model.hf(input_ids=batch.tokens, use_cache=False, logits_to_keep=1)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model, lesson = build_model(), build_lesson()
    actions: dict[str, Callable[[], object]] = {
        "plain batched forward": lambda: plain(model, lesson),
        "zero-shot": lambda: model.read(lesson),
        "in-context": lambda: model.read(lesson, model.prefix(lesson.context)),
    }
    best = {
        name: min(times)
        for name, times in zip(
            actions,
            zip(*([seconds(a) for a in actions.values()] for _ in range(options.rounds)), strict=True),
            strict=True,
        )
    }
    print(f"context {len(lesson.context)} tokens, {len(lesson.queries)} queries of", end=" ")
    print(f"{np.mean([len(q) for q in lesson.queries]):.1f} tokens, {torch.get_num_threads()} threads")
    for name, time_taken in best.items():
        print(f"{name:22} {1e3 * time_taken / len(lesson.queries):7.2f} ms a query")
    print(f"in-context / zero-shot  {best['in-context'] / best['zero-shot']:.2f}  (at most 2)")
    print(f"zero-shot / plain       {best['zero-shot'] / best['plain batched forward']:.2f}  (at most 1.1)")
    prefix = model.prefix(lesson.context)
    print(f"prefix {in_words(prefix.nbytes)}, whatever the batch")


if __name__ == "__main__":
    main()
