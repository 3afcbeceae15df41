"""The generated language: words, sentences, pairs, and the embedded tasks as a person meets them."""

import numpy as np
import pytest

from dualscope.tasks import GENERATORS, Episode, Task, make_lesson
from dualscope.tasks.synthetic import ATTRIBUTES, LEXICON, generate_rows
from dualscope.tasks.synthetic.sentences import FRAMES, RELATIONS, write_pairs
from dualscope.training.model_folder import make_tokenizer

NAMES = [f"embedded-{attribute.name}" for attribute in ATTRIBUTES]


@pytest.mark.parametrize("name", NAMES)
def test_catalog_agrees_with_the_attribute(name: str) -> None:
    task, attribute = Task.load(name), next(a for a in ATTRIBUTES if name.endswith(f"-{a.name}"))
    assert task.labels == attribute.labels
    assert {example.label for example in task.train} == set(range(len(task.labels)))
    texts = [task.prompt(example) for example in (*task.train, *task.evaluation)]
    assert len(set(texts)) == len(texts), "no query may be among the demonstrations"


@pytest.mark.parametrize("name", NAMES)
def test_32_shots_fit_and_every_word_is_known(name: str) -> None:
    tokenizer = make_tokenizer()
    lesson = make_lesson(Episode.draw(Task.load(name), shots=32, seed=0, queries=50), tokenizer, 1024)
    assert lesson.shots_used == 32
    assert tokenizer.unk_token_id not in lesson.context
    assert all(len(answer) == 1 for answer in lesson.answers)


def test_rows_are_seeded() -> None:
    one, two, three = (generate_rows(ATTRIBUTES[0], 20, np.random.default_rng(s)) for s in (0, 0, 1))
    assert one == two != three


def test_the_class_is_in_the_text() -> None:
    """Every sentence holds two words or more of its own class's clusters, and none of another class."""
    for attribute in ATTRIBUTES:
        if attribute.of_pairs:
            continue
        words = [{LEXICON.words[i] for c in members for i in LEXICON.table[c]} for members in attribute.classes]
        for row in generate_rows(attribute, 300, np.random.default_rng(3)):
            said = [word.strip(".,?") for word in str(row["text"]).split()]
            counts = [sum(word in own for word in said) for own in words]
            assert counts[int(row["label"])] >= 2
            assert sum(counts) == counts[int(row["label"])]


def test_every_frame_has_two_class_words() -> None:
    assert all(frame.count("{c}") >= 2 for frames in FRAMES.values() for frame in frames)


def test_relations_mean_what_they_say() -> None:
    opposite = {a: b for one, two in LEXICON.opposites for a, b in ((one, two), (two, one))}
    relation = np.repeat(np.arange(len(RELATIONS)), 50)
    for kind, premise, hypothesis in zip(relation, *write_pairs(relation, np.random.default_rng(0)), strict=True):
        said = LEXICON.text(hypothesis).split()
        premises = {word.strip(",.") for word in LEXICON.text(premise).split()}
        assert ("not" in said) == RELATIONS[kind].startswith("not-")
        plain = RELATIONS[kind].removeprefix("not-")
        found = "same" if said[-1] in premises else "opposite" if opposite[said[-1]] in premises else "unrelated"
        assert found == plain


def test_generators_are_registered() -> None:
    assert set(NAMES) <= set(GENERATORS)
