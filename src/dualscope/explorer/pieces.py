"""A text cut where its tokens are, so that it can be shown as it was typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
