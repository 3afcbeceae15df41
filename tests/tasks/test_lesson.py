"""Tokens: the context is a prefix of context + query, both learners are taught the same, and it fits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.models.model import Model
from dualscope.tasks import Episode, Lesson, Task, TaskConfig, make_lesson
from dualscope.tasks.sources import DataRow
from dualscope.tasks.tokens import encode
from tests.learners.setting import tiny_task

# Quotes, newlines, accents, other scripts, emoji, control signs, special tokens spelt out, very long words.
texts = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="\"'\n\r\t {}\\▁Ġé东🎉\u2028\u200d\x00ab", max_size=40),
    st.sampled_from(["</s>", "<s> </s>", "<unk>", "Label: Positive", "  ", "\n", "x" * 3000, "é" * 500]),
)
same_fixture = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class Rows:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def rows(self, split: str) -> list[DataRow]:
        return [{"text": text, "label": i % 2} for i, text in enumerate(self.texts)]

    def file(self, split: str) -> None:
        return None

    def where(self, split: str) -> str:
        return split


def make_task(texts: list[str], labels: tuple[str, ...] = ("Negative", "Positive"), **more: str) -> Task:
    source = {"files": {"train": "a.csv", "evaluation": "b.csv"}}
    fields = {"name": "made", "source": source, "template": "Sentence: {text} Label:", "labels": labels, **more}
    return Task(TaskConfig.model_validate(fields), Rows(texts))


def demonstrations_of(lesson: Lesson) -> list[tuple[str, tuple[int, ...]]]:
    return [(d.id, d.prompt + d.label) for d in lesson.demonstrations]


@same_fixture
@given(st.lists(texts, min_size=1, max_size=6), st.integers(0, 9), st.sampled_from(["prompt-end", "first-label"]))
def test_context_is_a_prefix_and_queries_keep_their_ids(tokenizer: Any, texts: Any, seed: int, read_at: Any) -> None:
    task = make_task(texts)
    episode = Episode.draw(task, shots=len(texts), seed=seed)
    lesson = make_lesson(episode, tokenizer, max_positions=10**6, read_at=read_at)
    pieces = [lesson.bos]
    for example, label in zip(episode.demonstrations, episode.labels("icl"), strict=True):
        pieces += [encode([task.prompt(example)], tokenizer)[0], lesson.answers[label], lesson.separator]
    assert lesson.context == tuple(token for piece in pieces for token in piece)
    for i, query in enumerate(episode.queries):
        alone = encode([task.prompt(query)], tokenizer)[0]  # what zero-shot sees after BOS
        whole = lesson.context + lesson.own_tokens(i)
        assert whole[: len(lesson.context)] == lesson.context
        assert lesson.queries[i] == alone
        assert whole[len(lesson.context) :][: len(alone)] == alone
    for demonstration in lesson.demonstrations:
        own = demonstration.prompt + demonstration.label
        assert lesson.context[demonstration.start :][: len(own)] == own


@same_fixture
@given(st.lists(texts, min_size=1, max_size=6), st.integers(0, 9), st.integers(0, 3), st.integers(30, 400))
def test_both_learners_are_taught_the_same(tokenizer: Any, texts: Any, seed: int, order: Any, positions: int) -> None:
    task = make_task([text[:20] for text in texts])
    episode = Episode.draw(task, shots=len(texts), seed=seed, order=order)
    try:
        lesson = make_lesson(episode, tokenizer, positions)
    except InputError:
        reject()  # nothing fits, and it says so
    assert lesson.training == lesson.demonstrations
    assert lesson.shots_used == len(lesson.demonstrations) <= lesson.shots == len(texts)


@same_fixture
@given(st.lists(texts, min_size=1, max_size=8), st.integers(40, 500))
def test_the_budget_is_kept_and_used(tokenizer: Any, texts: Any, positions: int) -> None:
    task = make_task([text[:60] for text in texts])
    episode = Episode.draw(task, shots=len(texts))
    try:
        lesson = make_lesson(episode, tokenizer, positions)
    except InputError:
        reject()
    tail = max(map(len, lesson.queries)) + max(map(len, lesson.answers))
    assert len(lesson.context) + tail <= positions
    if lesson.shots_used < lesson.shots:
        following = episode.demonstrations[lesson.shots_used]
        more = encode([task.prompt(following)], tokenizer)[0] + lesson.answers[following.label] + lesson.separator
        assert len(lesson.context) + len(more) + tail > positions
    assert [d.id for d in lesson.demonstrations] == [e.id for e in episode.demonstrations[: lesson.shots_used]]


def test_a_demonstration_that_fits_exactly_is_used(tokenizer: Any) -> None:
    episode = Episode.draw(make_task(["rest", "sting", "lore"]), shots=3)
    whole = make_lesson(episode, tokenizer, max_positions=10**6)
    needed = len(whole.context) + max(map(len, whole.queries)) + max(map(len, whole.answers))
    assert make_lesson(episode, tokenizer, max_positions=needed).shots_used == 3
    assert make_lesson(episode, tokenizer, max_positions=needed - 1).shots_used == 2


def test_the_first_that_does_not_fit_ends_the_context(byte_tokenizer: Any) -> None:
    task = make_task(["a", "b " * 100, "c", "d"])
    episode = Episode.draw(task, shots=4, order=0)
    lengths = [len(e.fields["text"]) for e in episode.demonstrations]
    lesson = make_lesson(episode, byte_tokenizer, max_positions=400)
    assert lesson.shots_used == lengths.index(200), "no shorter one after it slips in"


def test_all_demonstrations_for_gd_where_asked(byte_tokenizer: Any) -> None:
    task = make_task([f"{i} " * 20 for i in range(10)])
    lesson = make_lesson(Episode.draw(task, shots=10), byte_tokenizer, 256, gd_demonstrations="all")
    assert lesson.shots_used < len(lesson.training) == 10
    assert lesson.training[: lesson.shots_used] == lesson.demonstrations
    assert {d.start for d in lesson.training[lesson.shots_used :]} == {-1}


def test_each_side_gets_its_own_labels(byte_tokenizer: Any) -> None:
    task = make_task(["one", "two", "three"])
    episode = Episode.draw(task, shots=3, demo_labels="flipped", corrupt="gd")
    lesson = make_lesson(episode, byte_tokenizer, 256)
    for shown, taught in zip(lesson.demonstrations, lesson.training, strict=True):
        assert (shown.id, shown.prompt) == (taught.id, taught.prompt)
        assert taught.label_index == 1 - shown.label_index
        assert taught.label == lesson.answers[taught.label_index]


@pytest.mark.parametrize("kind", ["byte_tokenizer", "prepending_tokenizer"])
def test_a_special_token_spelt_in_the_text_is_text(kind: str, request: pytest.FixtureRequest) -> None:
    # Not the unigram kind: its own vocabulary matches "</s>" in any text, and no option keeps it from that.
    tokenizer = request.getfixturevalue(kind)
    lesson = make_lesson(Episode.draw(make_task(["</s><s>"]), shots=1), tokenizer, 256)
    assert not {tokenizer.bos_token_id, tokenizer.eos_token_id} & set(lesson.queries[0])


def test_prompt_and_answer_read_with_one_space(tokenizer: Any) -> None:
    lesson = make_lesson(Episode.draw(make_task(["rest"]), shots=1), tokenizer, 256)
    joined = lesson.queries[0] + lesson.answers[1]
    assert (
        tokenizer.decode(list(joined), clean_up_tokenization_spaces=False).strip() == "Sentence: rest Label: Positive"
    )


def test_a_separator_of_the_tasks_own(byte_tokenizer: Any) -> None:
    task = make_task(["a"], separator="\n\n")
    lesson = make_lesson(Episode.draw(task, shots=1), byte_tokenizer, 256)
    assert byte_tokenizer.decode(list(lesson.separator)) == "\n\n"
    assert lesson.context[-len(lesson.separator) :] == lesson.separator


def test_a_tokenizer_without_bos_uses_none(byte_tokenizer: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer.backend_tokenizer, eos_token="</s>")
    lesson = make_lesson(Episode.draw(make_task(["a"]), shots=1), bare, 256)
    assert lesson.bos == ()
    assert lesson.demonstrations[0].start == 0


def test_no_eos_and_no_separator_is_an_error(byte_tokenizer: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer.backend_tokenizer)
    with pytest.raises(InputError, match=r"no EOS .* give the task a `separator`"):
        make_lesson(Episode.draw(make_task(["a"]), shots=1), bare, 256)


def test_read_at_first_label_appends_the_first_label(byte_tokenizer: Any) -> None:
    episode = Episode.draw(make_task(["a", "b"]), shots=1)
    end, label = (make_lesson(episode, byte_tokenizer, 256, read_at=at) for at in ("prompt-end", "first-label"))
    assert end.own_tokens(0) == end.queries[0]
    assert label.own_tokens(1) == label.queries[1] + label.answers[0]


def test_identical_label_tokens_are_an_error(metaspace_tokenizer: Any) -> None:
    with pytest.raises(InputError, match="'Ω' and 'Ψ' have the same tokens"):  # both unknown to it
        make_lesson(Episode.draw(make_task(["a"], ("Ω", "Ψ")), shots=1), metaspace_tokenizer, 256)


def test_a_label_that_begins_another_is_a_warning(byte_tokenizer: Any) -> None:
    episode = Episode.draw(make_task(["a"], ("Positive", "Positive Negative")), shots=1)
    with pytest.warns(UserWarning, match="the tokens of the first begin those of the second"):
        make_lesson(episode, byte_tokenizer, 256)


def test_ordinary_labels_do_not_warn(tokenizer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_lesson(Episode.draw(make_task(["a"]), shots=1), tokenizer, 256)


def test_a_query_that_is_too_long_is_named(byte_tokenizer: Any) -> None:
    episode = Episode.draw(make_task(["a", "b " * 300]), shots=1)
    with pytest.raises(InputError, match=r"query evaluation:1 has .* the model has 256 positions"):
        make_lesson(episode, byte_tokenizer, 256)


def test_no_room_for_a_demonstration_is_an_error(byte_tokenizer: Any) -> None:
    with pytest.raises(InputError, match="no demonstration fits"):
        make_lesson(Episode.draw(make_task(["b " * 20]), shots=1), byte_tokenizer, 60)


@pytest.mark.parametrize(("name", "value"), [("read_at", "end"), ("gd_demonstrations", "none")])
def test_unknown_choices(byte_tokenizer: Any, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name}: '{value}' is not accepted; accepted: "):
        make_lesson(Episode.draw(make_task(["a"]), shots=1), byte_tokenizer, 256, **{name: value})


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("embedded", device="cpu")


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.load("embedded-sst2")


def test_every_class_gets_a_word_of_its_own(model: Model, task: Task) -> None:
    words = []
    for seed in range(4):
        episode = Episode.draw(task, 4, seed, queries=5, demo_labels="abstract")
        lesson = make_lesson(episode, model.tokenizer, model.max_positions)
        labels = lesson.episode.task.labels
        assert len(set(labels)) == 2
        assert not set(labels) & set(task.labels)
        assert all(len(answer) == 1 for answer in lesson.answers)
        assert model.tokenizer.unk_token_id not in {answer[0] for answer in lesson.answers}
        assert [d.label_index for d in lesson.demonstrations] == [e.label for e in episode.demonstrations]
        assert all(d.label == lesson.answers[d.label_index] for d in lesson.demonstrations)
        words.append(labels)
    assert len(set(words)) > 1, "the seed deals them out"


def test_other_demonstrations_keep_the_words(model: Model, task: Task) -> None:
    episode = Episode.draw(task, 4, 0, queries=5, demo_labels="abstract")
    bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    altered = bench.learned("in-context", control="redraw")
    assert altered.trace.query_ids == bench.lesson.query_ids
    from dualscope.learners.altered_lessons import redrawn

    assert redrawn(bench.lesson, model).answers == bench.lesson.answers


def test_what_cannot_be_had(model: Model, task: Task) -> None:
    with pytest.raises(InputError, match="cannot be had with it"):
        Episode.draw(task, 4, 0, demo_labels="abstract", corrupt="icl")
    many = tiny_task(labels=tuple(f"w{i}" for i in range(60)), n=400)
    episode = Episode.draw(many, 2, 0, queries=2, demo_labels="abstract")
    with pytest.raises(InputError, match="needs 60 words"):
        make_lesson(episode, model.tokenizer, model.max_positions)


def test_queries_of_another_template(model: Model) -> None:
    one, other = tiny_task("one"), tiny_task("other", template="Review: {text} Sentiment:")
    episode = Episode.draw(one, 3, 0, queries=4, queries_from=other)
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    as_asked = [model.tokenizer(other.prompt(q), add_special_tokens=False)["input_ids"] for q in episode.queries]
    assert [list(query) for query in lesson.queries] == as_asked
    first = model.tokenizer(one.prompt(episode.demonstrations[0]), add_special_tokens=False)["input_ids"]
    assert list(lesson.demonstrations[0].prompt) == first
    with pytest.raises(InputError, match="need the same label words"):
        Episode.draw(one, 3, 0, queries=4, queries_from=tiny_task("third", labels=("Yes", "No")))
