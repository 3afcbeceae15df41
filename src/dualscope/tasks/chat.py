"""Demonstrations as the turns of a conversation, through the chat template of a model's own tokenizer.

A template renders whole conversations, and we need pieces: what stands before the first turn, a question with what
opens its answer, the answer, its end. They are found by rendering made-up conversations and looking at what is around
that which was said; a template whose turns are not alike everywhere cannot be cut, and is refused.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reason
from dualscope.tasks import sandboxed_template
from dualscope.tasks.sandboxed_template import LONGEST, SECONDS
from dualscope.tasks.task import Task
from dualscope.tasks.tokens import Pieces, Tokens, check_answers, encode

# Some templates tell the day, and a run must not change overnight: it is always the same one.
DATE = "26 Jul 2024"
_SAME_DAY = (
    "{%- macro strftime_now(format) -%}{{ {'%Y-%m-%d': '2024-07-26', '%B %d, %Y': 'July 26, 2024'}"
    f".get(format, '{DATE}') }}}}{{%- endmacro +%}}"
)
PATIENCE = 60  # seconds, of a busy machine that starts a process; the template itself has `SECONDS`
_ASKED, _SAID = ("QUESTIONone", "QUESTIONtwo", "QUESTIONthree"), ("ANSWERone", "ANSWERtwo")


@dataclass(frozen=True)
class Turns:
    """A conversation is the head, then for every turn: before, question, opening, gap, answer, close.

    Where an answer is awaited, a conversation ends with the opening.
    """

    head: str  # BOS, perhaps a system message
    before: str
    opening: str
    gap: str  # spaces, which belong to the answer's first token
    close: str
    trims: bool  # whether questions lose the space around them
    controls: frozenset[str]  # tokens that are no text

    def question(self, text: str) -> str:
        return self.before + (text.strip() if self.trims else text) + self.opening

    def controls_in(self, text: str) -> bool:
        return any(token in text for token in self.controls)

    def answer(self, word: str) -> str:
        return self.gap + word

    def conversation(self, turns: Sequence[tuple[str, str]], query: str) -> str:
        said = (self.question(text) + self.answer(word) + self.close for text, word in turns)
        return self.head + "".join(said) + self.question(query)


def turns_of(tokenizer: Any) -> Turns:
    """What the tokenizer's template puts around questions and answers."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "chat: this model's tokenizer has no chat template; leave `chat` out, or take a model that was trained to "
            "answer in conversations"
        )
    one, two, three = (_cut(tokenizer, turns) for turns in (1, 2, 3))
    first, post = one
    opens, between = two[1], two[2]
    if two != [first, opens, between, post] or three != [first, opens, between, opens, between, post]:
        raise InputError(
            "chat: this model's chat template writes a turn differently when others stand before or after it, so a "
            "context cannot be shared by many queries; leave `chat` out"
        )
    if not opens.startswith(post):
        raise InputError(
            f"chat: this model's chat template opens the answer that it asks for with {post!r} and earlier answers "
            f"with {opens!r}, so demonstrations and queries would not look alike; leave `chat` out"
        )
    close, before = _end_of_turn(tokenizer, first, between)
    opening = opens.rstrip(" ")
    asked = _render(tokenizer, [_turn("user", f"  {_ASKED[0]} ")], answer=True)
    return Turns(
        head=first.removesuffix(before),
        before=before,
        opening=opening,
        gap=opens[len(opening) :],
        close=close,
        trims=f"  {_ASKED[0]} " not in asked,
        controls=_controls(tokenizer, first + opens + between),
    )


def chat_pieces(task: Task, tokenizer: Any) -> Pieces:
    """A task's pieces in tokens: each as it is tokenised after what comes before it in a conversation."""
    turns = turns_of(tokenizer)
    (head,) = _tokens([turns.head], tokenizer)
    stem = turns.head + turns.question("x")
    answers = [_after(stem, turns.answer(word), tokenizer) for word in task.labels]
    close = _after(stem + turns.answer(task.labels[0]), turns.close, tokenizer)
    check_answers(task, answers, tokenizer)

    def prompts(texts: Sequence[str]) -> list[Tokens]:
        known = _tokens([turns.head + turns.question(text) for text in texts], tokenizer)
        return [
            whole[len(head) :]
            if whole[: len(head)] == head and not turns.controls_in(text)
            else _apart(turns, text, tokenizer)
            for text, whole in zip(texts, known, strict=True)
        ]

    return Pieces(head, close, tuple(answers), prompts)


def check_conversation(task: Task, tokenizer: Any, said: Sequence[tuple[str, str]], query: str, found: Tokens) -> None:
    """That what was cut and joined is what the template itself makes of a whole conversation.

    Other text is refused. Other tokens, where a tokenizer joins letters across two pieces, are told.
    """
    turns = turns_of(tokenizer)
    messages = [_turn(role, text) for pair in said for role, text in zip(("user", "assistant"), pair, strict=True)]
    whole = _render(tokenizer, [*messages, _turn("user", query)], answer=True)
    own = turns.conversation(said, query)
    if not (own + turns.gap).startswith(whole):  # the opening may say more than the template asks with
        at = next((i for i, (a, b) in enumerate(zip(own, whole, strict=False)) if a != b), min(len(own), len(whole)))
        there, meant = (text[max(0, at - 20) : at + 20] for text in (whole, own))
        raise InputError(
            f"task '{task.name}', chat: this model's chat template rewrites what is said: it has {there!r} where "
            f"{meant!r} was meant; change the task's template, or leave `chat` out"
        )
    texts = [*(text for text, _ in said), query]
    if any(turns.controls_in(text) for text in texts):
        return  # those are text on purpose, and control tokens for the template
    (tokens,) = _tokens([own], tokenizer)
    if tokens != found:
        at = next((i for i, (a, b) in enumerate(zip(tokens, found, strict=False)) if a != b), -1)
        names = [tokenizer.convert_ids_to_tokens(list(ids[at : at + 2])) for ids in (found, tokens)]
        warnings.warn(
            f"task '{task.name}', chat: cut into turns the conversation has {len(found)} tokens, as a whole "
            f"{len(tokens)}; the first that differ are {names[0]} and {names[1]}",
            stacklevel=2,
        )


def _cut(tokenizer: Any, turns: int) -> list[str]:
    """What a template puts before, between and after what is said in a conversation that awaits its last answer."""
    spoken = [text for pair in zip(_ASKED, _SAID, strict=False) for text in pair][: 2 * turns - 2]
    spoken = [*spoken, _ASKED[turns - 1]]
    roles = ("user", "assistant") * turns
    messages = [_turn(role, text) for role, text in zip(roles, spoken, strict=False)]
    rest, parts = _render(tokenizer, messages, answer=True), []
    for text in spoken:
        if rest.count(text) != 1:
            raise InputError(
                "chat: this model's chat template does not write every turn once, as it was said, so a conversation "
                "cannot be cut into turns; leave `chat` out"
            )
        part, _, rest = rest.partition(text)
        parts.append(part)
    return [*parts, rest]


def _end_of_turn(tokenizer: Any, first: str, between: str) -> tuple[str, str]:
    """Where an answer ends and the next question begins, in what stands between the two.

    An answer at the end of a conversation shows its end, unless the template adds an end of the whole conversation;
    then the next question begins as the first one did.
    """
    ended = _render(tokenizer, [_turn("user", _ASKED[0]), _turn("assistant", _SAID[0])], answer=False)
    close = ended.partition(_SAID[0])[2]
    if not between.startswith(close):
        shared = next((n for n in range(len(between) + 1) if first.endswith(between[n:])), len(between))
        close = between[:shared]
    before = between[len(close) :]
    if not first.endswith(before) or not before:
        raise InputError(
            f"chat: this model's chat template begins the first question with {first!r} and later ones with "
            f"{between!r}, so a query is not the same with and without demonstrations; leave `chat` out"
        )
    return close, before


def _render(tokenizer: Any, messages: list[dict[str, str]], answer: bool) -> str:
    template = _SAME_DAY + tokenizer.get_chat_template()
    _check_tame(template, json.dumps(tokenizer.special_tokens_map, default=str))
    try:
        said = str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answer, chat_template=template, date_string=DATE
            )
        )
    except Exception as error:  # a template of another author may raise anything
        raise InputError(_refused(reason(error))) from error
    if len(said) > LONGEST + 20 * sum(len(message["content"]) for message in messages):
        raise InputError(_refused(f"it makes {len(said):,} characters of a conversation"))
    return said


def _refused(why: str) -> str:
    return (
        f"chat: this model's chat template does not render questions and answers ({why}); "
        "does it need a system message? Leave `chat` out"
    )


@lru_cache(maxsize=16)
def _check_tame(template: str, tokens: str) -> None:
    """Try a template in a process of its own, with limits of time and memory, before it is rendered here."""
    spoken = [_turn("user", _ASKED[0]), _turn("assistant", _SAID[0]), _turn("user", _ASKED[1])]
    request = {
        "template": template,
        "conversations": [(spoken[:1], True), (spoken[:2], False), (spoken, True)],
        "settings": {**json.loads(tokens), "date_string": DATE},
    }
    try:
        done = subprocess.run(
            [sys.executable, sandboxed_template.__file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise InputError(_refused(f"it takes longer than {PATIENCE} seconds")) from None
    if done.returncode < 0:
        raise InputError(_refused(f"it takes longer than {SECONDS} seconds, or too much memory"))
    if done.returncode:
        raise InputError(_refused((done.stderr.strip().splitlines() or ["it fails"])[-1]))


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _tokens(texts: Sequence[str], tokenizer: Any) -> list[Tokens]:
    """With the template's control tokens as what they are."""
    if not texts:
        return []
    return [tuple(map(int, row)) for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _after(stem: str, text: str, tokenizer: Any) -> Tokens:
    """The tokens that a text adds to a stem, or its own where letters are joined across the two."""
    before, whole = _tokens([stem, stem + text], tokenizer)
    return whole[len(before) :] if whole[: len(before)] == before else _tokens([text], tokenizer)[0]


def _apart(turns: Turns, text: str, tokenizer: Any) -> Tokens:
    """A question whose text is text, also where it spells a control token."""
    before, opening = _tokens([turns.before, turns.opening], tokenizer)
    said = text.strip() if turns.trims else text
    return before + encode([said], tokenizer)[0] + opening


def _controls(tokenizer: Any, template: str) -> frozenset[str]:
    """Special tokens, and other added ones that the template writes by itself."""
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(str(token) for token in added if str(token).strip() and (token.special or str(token) in template))
