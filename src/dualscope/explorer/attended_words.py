"""Where a head looks, word by word: in context, without it, after the update, and in the update's dual form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.descent.dual_records import Dual
from dualscope.explorer.state import State

if TYPE_CHECKING:
    from dualscope.explorer.bench_cache import BenchCache
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Learned
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


def pieces(text: str, tokens: Sequence[int], tokenizer: Any) -> list[str]:
    """One piece a token, together the text; spaces stand before the word they belong to.

    Where the tokenizer cannot say where its tokens stand, the pieces are what it makes of them.
    """
    for candidate in (text, text.removeprefix(" ")):
        found = (
            tokenizer([candidate], add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
            if tokenizer.is_fast
            else {}
        )
        if found and list(found["input_ids"][0]) == list(tokens):
            ends = [end for _, end in found["offset_mapping"][0]]
            starts = [0, *ends[:-1]]
            return [candidate[start:end] for start, end in zip(starts, ends, strict=True)]
    return _decoded(tokens, tokenizer)


def unknown_words(lesson: Lesson, tokenizer: Any) -> list[str]:
    """What the tokenizer can only write as "unknown", in demonstrations and queries, each once."""
    if tokenizer.unk_token_id is None:
        return []
    episode = lesson.episode
    shown = zip(episode.demonstrations, (one.prompt for one in lesson.demonstrations), strict=False)
    asked = zip(episode.queries, lesson.queries, strict=True)
    found: dict[str, None] = {}
    for example, tokens in (*shown, *asked):
        if tokenizer.unk_token_id in tokens:
            cut = pieces(episode.task.prompt(example), tokens, tokenizer)
            pairs = zip(cut, tokens, strict=True)
            found |= {piece.strip(): None for piece, token in pairs if token == tokenizer.unk_token_id}
    return list(found)


def _decoded(tokens: Sequence[int], tokenizer: Any) -> list[str]:
    before, found = "", []
    for count in range(1, len(tokens) + 1):
        now = tokenizer.decode(list(tokens[:count]), clean_up_tokenization_spaces=False)
        found.append(now[len(before) :] if now.startswith(before) else now)
        before = now
    return found


# A part of the text each: BOS, every demonstration, the query; None: not seen.
TokenWeights = list[list[float] | None]


def words_of(cache: BenchCache, state: State, learning: LearnerSpec) -> dict[str, Any]:
    """The text in parts, and how each way of learning weighs its words, for one query, layer and head."""
    lesson, model = cache.bench.lesson, cache.bench.model
    query, layer, head = _place(state, model, lesson)
    bench = cache.bench_for(learning, state.steps)
    learned = bench.result(learning).learned
    reading = _Reading(lesson, query, layer, head)
    found = [
        _named("in-context", "in context", reading.of_context(bench)),
        _named("zero-shot", "without the context", reading.alone(bench.zero_shot.extras)),
    ]
    if "attention_own" in learned.trace.extras:
        found.append(_named(state.focus, f"after {state.focus}", reading.alone(learned.trace.extras)))
    notes = []
    try:
        shares = reading.of_dual(Dual.of(learned.log), learned, model, bench)
        found.append(
            _named(state.focus, f"the update of {state.focus}: which words it is made of, for this query", shares)
        )
    except InputError:
        notes.append(f"{state.focus} changes no keys and values by gradients, so its change has no dual form.")
    return {
        "query": query,
        "layer": layer,
        "head": head,
        "parts": parts_of(lesson, model.tokenizer, query),
        "readings": found,
        "notes": notes,
    }


def _named(learner: str, title: str, weights: TokenWeights) -> dict[str, Any]:
    return {"learner": learner, "title": title, "weights": weights}


def _place(state: State, model: Model, lesson: Lesson) -> tuple[int, int, int]:
    view = state.view
    if view.layer is None or view.layer >= model.n_layers:
        raise InputError(f"there is no layer {view.layer}: {model.name} has layers 0 to {model.n_layers - 1}")
    if view.head is None or view.head >= model.n_heads:
        raise InputError(f"there is no head {view.head}: {model.name} has heads 0 to {model.n_heads - 1}")
    return min(view.query, len(lesson.queries) - 1), view.layer, view.head


class _Reading:
    """One query, layer and head of a lesson."""

    def __init__(self, lesson: Lesson, query: int, layer: int, head: int) -> None:
        self.lesson, self.query, self.layer, self.head = lesson, query, layer, head
        self.own = len(lesson.own_tokens(query))

    def of_context(self, bench: Bench) -> TokenWeights:
        extras = bench.in_context.extras
        before, lesson = self._row(extras["attention_before"]), self.lesson
        found: TokenWeights = [before[: len(lesson.bos)]]
        for shown in lesson.demonstrations:
            end = shown.start + len(shown.prompt) + len(shown.label) + len(lesson.separator)
            found.append(before[shown.start : end])
        return [*found, self._row(extras["attention_own"])[-self.own :]]

    def alone(self, extras: dict[str, Tensor]) -> TokenWeights:
        none: TokenWeights = [None] * len(self.lesson.demonstrations)
        return [self._row(extras["attention_before"]), *none, self._row(extras["attention_own"])[-self.own :]]

    def of_dual(self, dual: Dual, learned: Learned, model: Model, bench: Bench) -> TokenWeights:
        """The share of each training token in what the update adds to the value of the read position, in this head.

        That is sum_t e_t (x'_t . x): a token's part has the size |e_t| |x'_t . x|, e_t cut to the head's own rows.
        """
        errors = dual.errors["value"][self.layer]
        groups = model.n_heads // (errors.shape[-1] // model.head_dim)
        first = self.head // groups * model.head_dim
        inputs = learned.trace.extras["layer_inputs"][self.query, self.layer].to(dual.inputs)
        sizes = (dual.inputs[self.layer] @ inputs).abs() * errors[:, first : first + model.head_dim].norm(dim=-1)
        shares = sizes / sizes.sum().clamp_min(torch.finfo(sizes.dtype).tiny)
        taught = bench.lesson.training
        bos = len(self.lesson.bos)
        table = [[0.0] * (bos + len(d.prompt) + len(d.label)) for d in taught]
        for demonstration, position, share in zip(
            dual.demonstrations.tolist(), dual.positions.tolist(), shares.tolist(), strict=True
        ):
            table[demonstration][position] += share
        at_bos = [sum(row[i] for row in table) for i in range(bos)]
        silent = [0.0] * len(self.lesson.separator)
        found: TokenWeights = [[*row[bos:], *silent] for row in table]
        found += [None] * (len(self.lesson.demonstrations) - len(found))  # no step was taken on these
        return [at_bos, *found, None]

    def _row(self, weights: Tensor) -> list[float]:
        return [float(value) for value in weights[self.query, self.layer, self.head].double()]


def parts_of(lesson: Lesson, tokenizer: Any, query: int) -> list[dict[str, Any]]:
    """The text as the model sees it: BOS, each demonstration with its separator, the query."""
    task, unknown = lesson.episode.task, tokenizer.unk_token_id

    def marks(tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"text": text, "kind": "mark"} for text in tokenizer.convert_ids_to_tokens(list(tokens))]

    def text(words: str, tokens: tuple[int, ...], kind: str) -> list[dict[str, Any]]:
        return [
            {"text": piece, "kind": kind, **({"unknown": True} if token == unknown else {})}
            for piece, token in zip(pieces(words, tokens, tokenizer), tokens, strict=True)
        ]

    parts = [{"name": "", "words": marks(lesson.bos)}]
    for number, (example, shown) in enumerate(zip(lesson.episode.demonstrations, lesson.demonstrations, strict=False)):
        words = [
            *text(task.prompt(example), shown.prompt, "prompt"),
            *text(task.answer(shown.label_index), shown.label, "label"),
            *marks(lesson.separator),
        ]
        parts.append({"name": f"demonstration {number + 1}", "words": words})
    asked = lesson.episode.queries[query]
    parts.append({"name": "the query", "words": text(task.prompt(asked), lesson.queries[query], "prompt")})
    return parts
