"""The exact posterior of generated tasks, against enumeration of all concepts."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.learners.bayes import ShownLabels, posterior_predictive
from dualscope.models import Model
from dualscope.tasks import Episode, Task, make_lesson
from dualscope.tasks.synthetic.embedded_tasks import ATTRIBUTES, attribute_of, fields_in, member_of, members_of
from tests.learners.setting import tiny_bench


def by_enumeration(evidence: ShownLabels, noise: float, known: float) -> Tensor:
    """Every concept by itself: its prior, the probability of each label that was shown, the answer it would give."""
    members, classes = evidence.counts.shape
    shown = [(m, y) for m in range(members) for y in range(classes) for _ in range(int(evidence.counts[m, y]))]
    settled = [int(c) for c in evidence.canonical]
    free = sum(c < 0 for c in settled)

    def says(concept: tuple[int, ...], member: int, label: int) -> float:
        return (1 - noise) * (concept[member] == label) + noise / classes

    total, answers = 0.0, torch.zeros(len(evidence.asked), classes, dtype=torch.float64)
    for concept in product(range(classes), repeat=members):
        prior = (1 - known) / classes**members
        if all(own < 0 or own == said for own, said in zip(settled, concept, strict=True)):
            prior += known / classes**free
        weight = prior
        for member, label in shown:
            weight *= says(concept, member, label)
        total += weight
        for row, member in enumerate(evidence.asked):
            for label in range(classes):
                answers[row, label] += weight * says(concept, int(member), label)
    return (answers / total).log()


@pytest.mark.parametrize("known", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.01, 0.3])
@pytest.mark.parametrize(("members", "classes"), [(8, 2), (6, 3)])
def test_it_is_the_sum_over_all_concepts(members: int, classes: int, noise: float, known: float) -> None:
    draw = torch.Generator().manual_seed(members)
    counts = torch.randint(0, 3, (members, classes), generator=draw).double()
    counts[-1] = 0  # a member that no demonstration is about
    canonical = torch.full((members,), -1)
    canonical[::2] = torch.randint(0, classes, (len(canonical[::2]),), generator=draw)
    evidence = ShownLabels(counts, torch.arange(members), canonical)
    found = posterior_predictive(evidence, noise, known)
    torch.testing.assert_close(found, by_enumeration(evidence, noise, known), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(members, dtype=torch.float64))


def lesson_of(name: str, shots: int = 12, queries: int = 30) -> Bench:
    model, task = Model.load("embedded", device="cpu"), Task.load(name)
    return Bench(model, make_lesson(Episode.draw(task, shots, queries=queries), model.tokenizer, model.max_positions))


@pytest.mark.parametrize("name", [f"embedded-{attribute.name}" for attribute in ATTRIBUTES])
def test_a_text_says_what_it_was_written_for(name: str) -> None:
    """Of every example of a task: the member that is read from its text belongs to the example's own class."""
    task = Task.load(name)
    attribute = attribute_of(task)
    assert attribute is not None
    for example in [*task.train, *task.evaluation]:
        member = member_of(attribute, example.fields)
        assert member in attribute.classes[example.label]
        fields = fields_in(f"<bos> {task.prompt(example)}", task.template)
        assert fields is not None
        assert member_of(attribute, fields) == member


@pytest.mark.parametrize("name", ["embedded-sst2", "embedded-cb"])
def test_on_an_embedded_task(name: str) -> None:
    """The learner itself, of the model's own tokens, against enumeration of what the examples are about."""
    bench = lesson_of(name)
    episode, attribute = bench.lesson.episode, attribute_of(bench.lesson.episode.task)
    assert attribute is not None
    members = members_of(attribute)
    counts = torch.zeros(len(members), len(attribute.classes), dtype=torch.float64)
    for example in episode.demonstrations:
        counts[members.index(member_of(attribute, example.fields) or 0), example.label] += 1
    asked = [members.index(member_of(attribute, query.fields) or 0) for query in episode.queries]
    canonical = [next((c for c, k in enumerate(attribute.known) if m in k), -1) for m in members]
    evidence = ShownLabels(counts, torch.tensor(asked), torch.tensor(canonical))
    found = bench.learned("bayes", noise=0.05, known=0.5)
    expected = by_enumeration(evidence, 0.05, 0.5)
    torch.testing.assert_close(found.trace.label_logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    assert found.predictions_only
    assert torch.equal(found.trace.attn_out, bench.zero_shot.attn_out)


def test_it_learns_and_controls_take_that_away() -> None:
    model, task, other = Model.load("embedded", device="cpu"), Task.load("embedded-sst2"), Task.load("embedded-agnews")

    def lesson(of: Task) -> object:
        return make_lesson(Episode.draw(of, 32, queries=100), model.tokenizer, model.max_positions)

    bench = Bench(model, lesson(task), other=lesson(other))  # type: ignore[arg-type]

    def accuracy(control: str | None) -> float:
        trace = bench.learned("bayes", control=control).trace
        return float((trace.label_logprobs.argmax(-1) == trace.labels).double().mean())

    assert accuracy(None) >= 0.95
    assert accuracy("redraw") >= 0.8  # some clusters may be in no demonstration
    assert accuracy("random-labels") < 0.8
    # Another task's texts say nothing of this one's: what is left is what was known before.
    taught = bench.learned("bayes", control="other-task", known=0.0).trace.label_logprobs.exp()
    torch.testing.assert_close(taught, torch.full_like(taught, 0.5))
    choice = bench.learned("bayes").choice
    assert choice is not None
    assert set(choice.settings) == {"noise", "known"}


def test_the_order_is_nothing_to_it() -> None:
    bench = lesson_of("embedded-agnews")
    own, other = (bench.learned("bayes", noise=0.1, known=0.0, control=c).trace for c in (None, "reorder"))
    torch.testing.assert_close(own.label_logprobs, other.label_logprobs)


def test_a_task_without_a_generator_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"task 'tiny' has no generator whose concepts are known.*embedded-sst2"):
        tiny_bench().learned("bayes")
    with pytest.raises(InputError, match="changes neither weights nor activations"):
        lesson_of("embedded-sst2").learned("bayes", control="random-update")


def test_words_of_two_clusters_are_no_generated_text() -> None:
    with pytest.raises(InputError, match="was not written by the generator"):
        member_of(ATTRIBUTES[0], {"text": "a superb mess"})
