"""An episode in a model's own tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from dualscope.core.errors import InputError, check_word
from dualscope.core.words import GdDemonstrations, GdOrder, ReadAt
from dualscope.tasks.episode import Episode
from dualscope.tasks.mapping import Example
from dualscope.tasks.task import Task
from dualscope.tasks.tokens import Tokens, answer_tokens, encode, pieces_of

# Label words that have nothing to do with the task: what they mean can only be learned from the demonstrations.


GENERAL = tuple(
    """
    red blue green black white apple river lemon tiger candle falcon silver horse winter glass mountain copper pepper
    rabbit window ladder island butter engine pencil hammer summer spring forest ocean desert iron gold stone bread
    honey sugar paper letter number
    """.split()  # noqa: SIM905 (a list of words is read as words)
)
EMBEDDED = tuple(
    """
    Alpha Beta Gamma Delta Omega Sigma Foo Bar Baz Qux One Two Three Four Five Six Left Right Up Down North South East
    West Apple Lemon Cherry Mango Gold Silver Bronze Iron Circle Square Triangle
    """.split()  # noqa: SIM905
)
"""The embedded model has few words; these are the ones that its training gave to classes at random."""


class AbstractTask(Task):
    """A task whose label words were exchanged. Its examples are read once, and with the task's own words."""

    def __init__(self, own: Task, labels: tuple[str, ...]) -> None:
        super().__init__(own.config.model_copy(update={"labels": labels}), own.source, own.chat)
        self.own = own

    @cached_property
    def demonstrations(self) -> tuple[Example, ...] | None:
        return self.own.demonstrations

    @cached_property
    def queries(self) -> tuple[Example, ...] | None:
        return self.own.queries

    @cached_property
    def train(self) -> Sequence[Example]:
        return self.own.train

    @cached_property
    def evaluation(self) -> Sequence[Example]:
        return self.own.evaluation


def with_abstract_labels(task: Task, tokenizer: Any, seed: int) -> Task:
    """The same task, each class under a word that the seed deals out; each word one known token of its own."""
    if isinstance(task, AbstractTask):  # other demonstrations for the same queries keep their words
        return task
    used = {word.lower() for label in task.labels for word in label.split()} | set(task.template.lower().split())

    def usable(words: tuple[str, ...]) -> list[str]:
        return [word for word in words if word.lower() not in used and _is_one_token(word, tokenizer)]

    # The list that the tokenizer knows better; a model of many words knows both.
    best = max((GENERAL, EMBEDDED), key=lambda words: len(usable(words)) / len(words))
    known = usable(best)
    if len(known) < len(task.labels):
        raise InputError(
            f"task '{task.name}': demo_labels: abstract needs {len(task.labels)} words that are one token each in this "
            f"model, and of the words to choose from {len(known)} are; give the task label words of your own"
        )
    order = np.random.default_rng([seed, 9]).permutation(len(known))
    changed = AbstractTask(task, tuple(known[i] for i in order[: len(task.labels)]))
    answer_tokens(changed, tokenizer)  # refuses words that it cannot tell apart
    return changed


def _is_one_token(word: str, tokenizer: Any) -> bool:
    """As it stands after the prompt: with the space before it."""
    tokens = encode([f" {word}"], tokenizer)[0]
    return len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id


NOT_IN_CONTEXT = -1


@dataclass(frozen=True)
class DemonstrationTokens:
    """One demonstration: BOS and separator are the lesson's."""

    id: str
    label_index: int
    prompt: Tokens
    label: Tokens
    start: int  # where its first token stands in the context; -1 where the context had no room for it


@dataclass(frozen=True)
class Lesson:
    """What both learners are taught and asked. Pieces are tokenised separately and joined, so the context is
    a prefix of context + query, and the query's own tokens are the same ids with and without the context.

    >>> from dualscope import Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=4, queries=6), model.tokenizer, model.max_positions)
    >>> lesson.shots_used, len(lesson.queries), lesson.context[:1] == lesson.bos
    (4, 6, True)
    >>> model.tokenizer.decode(lesson.answers[1])
    'Positive'
    """

    episode: Episode
    bos: Tokens  # () where the tokenizer has none; in chat, all that its template puts before the first turn
    separator: Tokens  # in chat, what ends an answer
    demonstrations: tuple[DemonstrationTokens, ...]  # those that fit in the context, ICL's labels
    training: tuple[DemonstrationTokens, ...]  # what GD sees, GD's labels
    context: Tokens  # BOS, then every demonstration and the separator
    queries: tuple[Tokens, ...]  # the prompt of each query, no BOS
    answers: tuple[Tokens, ...]  # the label's tokens, by class
    labels: tuple[int, ...]  # gold class of each query
    query_ids: tuple[str, ...]
    read_at: ReadAt
    shots: int
    shots_used: int
    gd_demonstrations: GdDemonstrations = "same"
    gd_order: GdOrder = "same"
    watched: Mapping[str, Tokens] = field(default_factory=dict, compare=False)
    """By query: the tokens whose probability of coming next is noted, where that is asked for."""

    def own_tokens(self, i: int) -> Tokens:
        """What query ``i`` adds after the context; a trace is read at the last of these."""
        return self.queries[i] + self.answers[0] if self.read_at == "first-label" else self.queries[i]

    def only(self, queries: Iterable[int]) -> Lesson:
        """The same lesson asking some of its queries."""
        kept = list(queries)
        return replace(
            self,
            queries=tuple(self.queries[i] for i in kept),
            labels=tuple(self.labels[i] for i in kept),
            query_ids=tuple(self.query_ids[i] for i in kept),
        )


def make_lesson(
    episode: Episode,
    tokenizer: Any,
    max_positions: int,
    read_at: ReadAt = "prompt-end",
    gd_demonstrations: GdDemonstrations = "same",
    gd_order: GdOrder = "same",
) -> Lesson:
    """Put an episode into a model's tokens. Demonstrations are added in order until one does not fit.

    Args:
        episode: The demonstrations and the queries.
        tokenizer: A Hugging Face one.
        max_positions: How many tokens its model can see.
        read_at: ``prompt-end`` (the last token of the prompt), or ``first-label`` (the first class's label after it, as
            in the published code).
        gd_demonstrations: What gradient descent is taught: the ``same`` as the context holds, or ``all``.
        gd_order: In which order: the ``same`` as the context's, or its ``own``, as in the published code.

    >>> from dualscope import Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=32, queries=6), model.tokenizer, max_positions=100)
    >>> lesson.shots, lesson.shots_used < 32, len(lesson.context) < 100
    (32, True, True)

    Raises:
        InputError: No demonstration fits, a query is too long or empty, or a label word cannot be told from another.
    """
    check_word(read_at, get_args(ReadAt), "read_at")
    check_word(gd_demonstrations, get_args(GdDemonstrations), "gd_demonstrations")
    check_word(gd_order, get_args(GdOrder), "gd_order")
    if episode.demo_labels == "abstract":
        episode = replace(episode, task=with_abstract_labels(episode.task, tokenizer, episode.seed))
    task, asked = episode.task, episode.asked or episode.task
    pieces = pieces_of(task, tokenizer)
    bos, separator, answers = pieces.bos, pieces.separator, pieces.answers
    queries = pieces_of(asked, tokenizer).prompts([asked.prompt(query) for query in episode.queries])
    _check_queries(episode, queries, len(bos), max(map(len, answers)), max_positions)

    prompts = pieces.prompts([task.prompt(example) for example in episode.demonstrations])
    room = max_positions - max(map(len, queries)) - max(map(len, answers))
    context = bos
    demonstrations: list[DemonstrationTokens] = []
    for example, prompt, label in zip(episode.demonstrations, prompts, episode.labels("icl"), strict=True):
        addition = prompt + answers[label] + separator
        if len(context) + len(addition) > room:
            break  # no later one either: the order says which go first, not the length
        demonstrations.append(DemonstrationTokens(example.id, label, prompt, answers[label], len(context)))
        context += addition
    if not demonstrations:
        raise InputError(
            f"task '{task.name}': no demonstration fits: the first has {len(prompts[0])} tokens, and the "
            f"longest query leaves {room - len(bos)} of the model's {max_positions} positions"
        )
    starts = [demonstration.start for demonstration in demonstrations]
    if gd_demonstrations == "all":
        starts += [NOT_IN_CONTEXT] * (len(prompts) - len(starts))
    training = tuple(
        DemonstrationTokens(example.id, label, prompt, answers[label], start)
        for example, prompt, label, start in zip(
            episode.demonstrations, prompts, episode.labels("gd"), starts, strict=False
        )
    )
    for taught in training:
        if (length := len(bos) + len(taught.prompt) + len(taught.label)) > max_positions:
            raise InputError(
                f"task '{task.name}': demonstration {taught.id} has {length} tokens, the model has "
                f"{max_positions} positions; `gd_demonstrations: same` leaves out what does not fit"
            )
    if task.chat:
        from dualscope.tasks.chat import check_conversation

        shown = zip(episode.demonstrations, demonstrations, strict=False)
        said = [(task.prompt(example), task.labels[taught.label_index]) for example, taught in shown]
        check_conversation(task, tokenizer, said, task.prompt(episode.queries[-1]), context + queries[-1])
    return Lesson(
        episode=episode,
        bos=bos,
        separator=separator,
        demonstrations=tuple(demonstrations),
        training=training,
        context=context,
        queries=tuple(queries),
        answers=answers,
        labels=tuple(query.label for query in episode.queries),
        query_ids=tuple(query.id for query in episode.queries),
        read_at=read_at,
        shots=episode.shots,
        shots_used=len(demonstrations),
        gd_demonstrations=gd_demonstrations,
        gd_order=gd_order,
    )


def _check_queries(episode: Episode, queries: list[Tokens], bos: int, answer: int, max_positions: int) -> None:
    for query, tokens in zip(episode.queries, queries, strict=True):
        if not tokens:
            raise InputError(f"task '{episode.task.name}': query {query.id} has no tokens in this model")
        if bos + len(tokens) + answer > max_positions:
            raise InputError(
                f"task '{episode.task.name}': query {query.id} has {len(tokens)} tokens and its longest "
                f"answer {answer}; the model has {max_positions} positions. Leave it out of the data, "
                f"or take a model with a longer context"
            )
