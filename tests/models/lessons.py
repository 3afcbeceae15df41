"""Lessons of random tokens: no task, no data, only what reading needs."""

import numpy as np

from dualscope.tasks.lesson import DemonstrationTokens, Lesson

Tokens = tuple[int, ...]


def random_lesson(
    queries: tuple[int, ...] = (3, 5, 1, 12, 5, 5),
    answers: tuple[Tokens, ...] = ((16,), (17,)),
    shots: int = 4,
    read_at: str = "prompt-end",
    seed: int = 0,
    bos: bool = True,
    length: int = 7,
    head: Tokens = (1,),
) -> Lesson:
    """``queries`` are lengths: unequal, more of them than a small batch, and one alone. ``head`` stands before all."""
    draw = np.random.default_rng(seed)

    def words(n: int) -> Tokens:
        return tuple(int(token) for token in draw.integers(4, 96, n))

    start: Tokens = head if bos else ()
    context, demonstrations = start, []
    for i in range(shots):
        label = i % len(answers)
        prompt = words(length + i % 3)
        demonstrations.append(DemonstrationTokens(f"train:{i}", label, prompt, answers[label], len(context)))
        context += (*prompt, *answers[label], 2)
    return Lesson(
        episode=None,  # type: ignore[arg-type]
        bos=start,
        separator=(2,),
        demonstrations=tuple(demonstrations),
        training=tuple(demonstrations),
        context=context,
        queries=tuple(words(n) for n in queries),
        answers=answers,
        labels=tuple(i % len(answers) for i in range(len(queries))),
        query_ids=tuple(f"validation:{i}" for i in range(len(queries))),
        read_at=read_at,  # type: ignore[arg-type]
        shots=shots,
        shots_used=shots,
    )
