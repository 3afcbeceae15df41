"""What a learner leaves open, chosen for a model and a task: on spare examples, over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from dualscope.choosing.halving import Choice
from dualscope.choosing.spare_examples import spare_of
from dualscope.core.words import DemoLabels, GdDemonstrations
from dualscope.learners.bench import Bench
from dualscope.learners.controls import settings_of
from dualscope.learners.learner import LEARNERS
from dualscope.tasks.episode import Episode
from dualscope.tasks.lesson import make_lesson

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.task import Task


def choose_settings(
    model: Model,
    task: Task,
    learner: str = "gd",
    seeds: Sequence[int] = (0, 1, 2),
    shots: int = 32,
    *,
    queries: int = 2000,
    balanced: bool = False,
    gd_demonstrations: GdDemonstrations = "same",
    demo_labels: DemoLabels = "gold",
    **options: Any,
) -> Choice:
    """The settings with which a learner is most accurate on training examples that no episode uses.

    Of ``gd`` that is its learning rate, which studies use for every gradient learner, as the papers do; of others what
    their options leave open. Averaged over the seeds; ties go to the lower mean -log p(gold label), then to the first.

    Args:
        model: Who learns.
        task: From whose training examples demonstrations and questions are drawn.
        learner: Its name.
        seeds: Which draws of demonstrations.
        shots: How many demonstrations.
        queries: How many training examples are asked at most.
        balanced: Whether every class has as many demonstrations.
        gd_demonstrations: What gradient descent is taught: the ``same`` as the context holds, or ``all``.
        demo_labels: ``gold``, ``flipped``, ``random`` or ``abstract``.
        **options: Options of the learner that are given, not chosen.

    >>> from dualscope import Model, Task, choose_settings
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> choose_settings(model, task, "gd", seeds=[0], shots=4, queries=10).settings["lr"] >= 0.01
    True
    >>> choose_settings(model, task, "kernel", seeds=[0], shots=4, queries=10, temperature=0.1).settings.keys()
    dict_keys(['layer', 'temperature'])

    Raises:
        InputError: Fewer than 50 training examples are neither demonstrations nor queries.
    """
    name = LEARNERS.canonical(learner)
    own, _ = settings_of(name, None, options)
    with ExitStack() as stack:
        benches = benches_of(model, task, seeds, shots, queries, balanced, gd_demonstrations, demo_labels)
        for bench in benches:
            stack.enter_context(closing(bench))
        return LEARNERS[name]().choose(benches, own)


def benches_of(
    model: Model,
    task: Task,
    seeds: Sequence[int],
    shots: int,
    queries: int,
    balanced: bool,
    gd_demonstrations: GdDemonstrations,
    demo_labels: DemoLabels,
    only: int | None = None,
) -> list[Bench]:
    """A bench for each seed (or ``only`` one); its spare examples are in no seed's episode."""
    drawn = {
        seed: Episode.draw(task, shots, seed, queries, balanced=balanced, demo_labels=demo_labels) for seed in seeds
    }
    benches = []
    for episode in drawn.values() if only is None else (drawn[only],):
        lesson = make_lesson(episode, model.tokenizer, model.max_positions, gd_demonstrations=gd_demonstrations)
        benches.append(Bench(model, lesson, spare=spare_of(lesson, model, list(drawn.values()))))
    return benches
