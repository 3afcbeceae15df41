"""Training sequences: the format of an episode's context, and what never occurs in them."""

import numpy as np
import pytest

from dualscope.tasks import Episode, Task, make_lesson
from dualscope.tasks.synthetic import ATTRIBUTES, LEXICON
from dualscope.training.corpus import APART, BOS, EOS, FORBIDDEN, Mixture, draw_batch, draw_sequence
from dualscope.training.evaluation import held_out_sequences
from dualscope.training.model_folder import make_tokenizer


def test_batches_are_seeded_by_step() -> None:
    one, two, three = (draw_batch(0, step, 4, 128) for step in (5, 5, 6))
    assert np.array_equal(one.tokens, two.tokens)
    assert not np.array_equal(one.tokens, three.tokens)


def test_every_sequence_is_filled_and_marked() -> None:
    batch = draw_batch(0, 0, 32, 512)
    assert (batch.tokens[:, 0] == BOS).all()
    assert not (batch.tokens[:, 1:] == BOS).any(), "a sequence ended before its length"
    labels = {LEXICON.id(word) for word in LEXICON.labels}
    assert set(batch.tokens[batch.is_label]) <= labels
    after = np.roll(batch.is_label, 1, axis=1)
    after[:, 0] = False
    assert (batch.tokens[after] == EOS).all()


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda a: a.name)
def test_training_has_the_format_of_a_context(attribute) -> None:  # type: ignore[no-untyped-def]
    """An embedded task's context, from text through the tokenizer, reads back as examples of a training sequence."""
    tokenizer = make_tokenizer()
    task = Task.load(f"embedded-{attribute.name}")
    lesson = make_lesson(Episode.draw(task, shots=3, seed=0, queries=2), tokenizer, 1024)
    rng = np.random.default_rng(0)
    only = Mixture(canonical=1.0, extended=0.0, relations=0.0)
    formats = {s.mapping.labels: s for s in (draw_sequence(rng, only) for _ in range(100))}
    sequence = formats[tuple(LEXICON.labels.index(word) for word in attribute.labels)]
    from dualscope.training.corpus import write_batch

    tokens = write_batch([sequence], 512, rng).tokens[0]
    first = tokens[1 : 1 + int(np.argmax(tokens[1:] == EOS))]
    prompt = lesson.demonstrations[0].prompt
    assert lesson.bos == (BOS,)
    assert lesson.separator == (EOS,)
    # The words around the text are the same tokens; the text's own differ from example to example.
    assert first[-2] == prompt[-1]
    if not attribute.of_pairs:
        assert first[0] == prompt[0]
    text = LEXICON.text(first)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == [int(t) for t in first]


def test_held_out_combinations_never_occur() -> None:
    rng = np.random.default_rng(0)
    shown: set[tuple[int, int]] = set()
    named: set[tuple[int, int]] = set()
    for _ in range(3000):
        sequence = draw_sequence(rng, Mixture())
        if sequence.of_pairs:
            continue
        for members, label in zip(sequence.mapping.classes, sequence.mapping.labels, strict=True):
            shown |= {(a, b) for a in members for b in members if a != b}
            named |= {(c, label) for c in members}
    for classes in (2, 3, 4):
        for sequence in held_out_sequences(200, classes, rng):
            assert len(set(sequence.mapping.labels)) == classes
            for members, label in zip(sequence.mapping.classes, sequence.mapping.labels, strict=True):
                assert tuple(members) not in shown
                assert all((c, label) not in named for c in members)


def test_embedded_classes_are_new_combinations() -> None:
    for attribute in ATTRIBUTES:
        if not attribute.of_pairs:
            for members, known in zip(attribute.classes, attribute.known, strict=True):
                new = [c for c in members if c not in known]
                assert APART[np.ix_(new, members)].all()


def test_random_tasks_have_usable_classes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        sequence = draw_sequence(rng, Mixture(canonical=0.0, extended=0.0, relations=0.0))
        assert all(sequence.mapping.classes)
        every = [c for members in sequence.mapping.classes for c in members]
        assert len(set(every)) == len(every)
        for members, label in zip(sequence.mapping.classes, sequence.mapping.labels, strict=True):
            assert not FORBIDDEN[list(members), label].any()
