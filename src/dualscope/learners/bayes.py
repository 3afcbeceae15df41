"""Bayes' rule over the concepts that a generator may have had in mind (Xie et al. 2022).

A generated task writes every example for one of its members (a cluster of words, or a relation of two sentences), and a
concept says which label each member has. The demonstrations are evidence about the concept, and the answer is the mean
over all concepts, each weighted by its posterior probability: exact, in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from dualscope.choosing.halving import Settings
from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.tasks.synthetic.embedded_tasks import (
    ATTRIBUTES,
    Attribute,
    attribute_of,
    fields_in,
    member_of,
    members_of,
)

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson
    from dualscope.tasks.task import Task
    from dualscope.tasks.tokens import Tokens

NOISES = (0.01, 0.03, 0.1, 0.3)
KNOWN = (0.0, 0.5, 0.9)


class BayesOptions(Options):
    noise: float | None = Field(
        None, gt=0, lt=1, description="how often a label is drawn at random, whatever the concept; none given: chosen"
    )
    known: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="the prior probability that the members which the embedded model was trained on have the task's "
        "own labels; none given: chosen",
    )


@LEARNERS.register("bayes")
class Bayes(Learner[BayesOptions]):
    """The exact posterior predictive of a generated task, over all assignments of labels to what texts are about."""

    title = "Bayes' rule over the generator's concepts"
    options = BayesOptions
    family = "bayes"
    changes_model = False

    open = ("noise", "known")

    def candidates(self, model: Model, options: BayesOptions) -> list[Settings]:
        noises = NOISES if options.noise is None else (options.noise,)
        known = KNOWN if options.known is None else (options.known,)
        return [{"noise": noise, "known": share} for share in known for noise in noises]

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: BayesOptions) -> Iterator[Tensor]:
        for found in candidates:  # on one bench: the queries are read once
            yield self.learn(bench, None, options.model_copy(update=dict(found))).trace.label_logprobs

    def learn(self, bench: Bench, lr: float | None, options: BayesOptions) -> Learned:
        lesson = bench.lesson
        attribute = generated(lesson.episode.asked or lesson.episode.task)
        options, choice = bench.chosen(self, options)
        assert options.noise is not None
        assert options.known is not None
        evidence = ShownLabels.of(bench.model, lesson, attribute)
        found = posterior_predictive(evidence, options.noise, options.known)
        logprobs = found.to(bench.zero_shot.label_logprobs)
        trace = replace(bench.zero_shot, label_logprobs=logprobs, label_logprobs_at_layer=None, extras={})
        return Learned(trace, predictions_only=True, choice=choice)


@dataclass(frozen=True)
class ShownLabels:
    """What the demonstrations say, and what is asked."""

    counts: Tensor  # [members, classes], how often a member was shown with a label
    asked: Tensor  # [queries], the member that each is about
    canonical: Tensor  # [members], the class that a member has in the embedded model's training; -1: none

    @classmethod
    def of(cls, model: Model, lesson: Lesson, attribute: Attribute) -> ShownLabels:
        """Texts that are about nothing of this task (another task's demonstrations) are evidence of nothing."""
        members = members_of(attribute)
        task = lesson.episode.task
        counts = torch.zeros(len(members), len(lesson.answers), dtype=torch.float64)
        for shown in lesson.training:
            member = _member(model, attribute, task, shown.prompt)
            if member is not None:
                counts[members.index(member), shown.label_index] += 1
        asked = [_member(model, attribute, lesson.episode.asked or task, query) for query in lesson.queries]
        unknown = [name for name, member in zip(lesson.query_ids, asked, strict=True) if member is None]
        if unknown:
            raise InputError(
                f"learner 'bayes': task '{task.name}': query {unknown[0]} was not written by the task's generator: "
                "it is about none of its clusters of words or relations"
            )
        own_words = task.labels == attribute.labels  # with others what training said of the labels is of no use
        canonical = [
            next((label for label, known in enumerate(attribute.known) if own_words and member in known), -1)
            for member in members
        ]
        places = [members.index(member) for member in asked if member is not None]
        return cls(counts, torch.tensor(places), torch.tensor(canonical))


def posterior_predictive(evidence: ShownLabels, noise: float, known: float) -> Tensor:
    """Log-probabilities of each query's labels, [queries, classes], in float64.

    A concept gives every member a label. With probability ``known`` those of ``canonical`` have theirs; the others, and
    all of them otherwise, have any label, independently. A label that is shown is the concept's, or with probability
    ``noise`` any.

    >>> counts = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    >>> evidence = ShownLabels(counts, torch.tensor([0, 1]), torch.tensor([-1, -1]))
    >>> posterior_predictive(evidence, noise=0.2, known=0.0).exp()
    tensor([[0.8902, 0.1098],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    counts, classes = evidence.counts, evidence.counts.shape[1]
    emitted = torch.eye(classes, dtype=torch.float64) * (1 - noise) + noise / classes  # [concept's label, shown label]
    likelihood = counts @ emitted.log().T  # [members, concept's label]
    free = likelihood.log_softmax(-1)
    evidence_free = likelihood.logsumexp(-1) - math.log(classes)
    settled = evidence.canonical >= 0
    own = evidence.canonical.clamp(min=0)
    fixed = torch.where(settled[:, None], F.one_hot(own, classes).double().log(), free)
    evidence_fixed = torch.where(settled, likelihood.gather(1, own[:, None])[:, 0], evidence_free)
    prior = torch.tensor([1 - known, known], dtype=torch.float64).log()
    weight = (prior + torch.stack([evidence_free.sum(), evidence_fixed.sum()])).log_softmax(0)
    posterior = torch.logsumexp(torch.stack([weight[0] + free, weight[1] + fixed]), 0).exp()
    found: Tensor = (posterior[evidence.asked] @ emitted).log()
    return found


def generated(task: Task) -> Attribute:
    """What a generated task asks about.

    Raises:
        InputError: No generator whose concepts are known has made it.
    """
    found = attribute_of(task)
    if found is None:
        known = ", ".join(f"embedded-{attribute.name}" for attribute in ATTRIBUTES)
        raise InputError(
            f"learner 'bayes': task '{task.name}' has no generator whose concepts are known, so there is no exact "
            f"posterior; it is there for tasks that these generators make: {known}"
        )
    return found


def _member(model: Model, attribute: Attribute, task: Task, prompt: Tokens) -> int | None:
    fields = fields_in(model.tokenizer.decode(list(prompt)), task.template)
    return None if fields is None else member_of(attribute, fields)
