"""Function vectors (Todd et al. 2024): a few heads carry the task, and the sum of what they write triggers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dualscope.choosing.halving import Choice, Settings
from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.learners.hidden_states.task_vector import Steering, check_layer, steered, tried
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.architecture.parts import written_by_heads
from dualscope.models.capture.block_hooks import OnHeads

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson

SHUFFLES = 4  # the prompts with shuffled labels come in so many contexts
Head = tuple[int, int]  # layer, number


class FunctionVectorOptions(Options):
    layer: int | None = Field(None, ge=0, description="after which layer it is added; none given: chosen")
    heads: int = Field(
        10, ge=1, description="how many heads, those of the largest indirect effect (all, where there are fewer)"
    )
    prompts: int = Field(20, ge=SHUFFLES, description="spare examples that effects and mean outputs are taken of")
    which: tuple[Head, ...] | None = Field(
        None, description="the heads themselves, as pairs of layer and number; none given: chosen"
    )


@LEARNERS.register("function-vector")
class FunctionVector(Learner[FunctionVectorOptions]):
    """What a few heads write at the end of the context and a query, on average, added to the query's residual."""

    title = "a function vector"
    options = FunctionVectorOptions
    family = "vector"

    open = ("layer", "which")

    def candidates(self, model: Model, options: FunctionVectorOptions) -> list[Settings]:
        layers = range(model.n_layers) if options.layer is None else [options.layer]
        return [{"layer": layer} for layer in layers]

    def materials(self, options: FunctionVectorOptions) -> int:
        return options.prompts

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: FunctionVectorOptions) -> Tensor:
        vector = function_vector(bench, options)
        return tried(bench, [Steering(one["layer"], vector, "add") for one in candidates])

    def choose(self, benches: Sequence[Bench], options: FunctionVectorOptions) -> Choice:
        """Heads by their effect over all seeds, then the layer."""
        if options.layer is not None:
            check_layer(benches[0].model, options.layer, self.name)
        effects = torch.stack([indirect_effects(bench, options.prompts).mean(0) for bench in benches]).mean(0)
        if options.which is None:
            options = options.model_copy(update={"which": strongest(effects, options.heads)})
        found = super().choose(benches, options)
        which = [list(head) for head in options.which or ()]
        return replace(found, settings={**found.settings, "which": which}, more={"indirect_effect": effects.tolist()})

    def learn(self, bench: Bench, lr: float | None, options: FunctionVectorOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.layer is not None
        check_layer(bench.model, options.layer, self.name)
        vector = function_vector(bench, options)
        return steered(bench, Steering(options.layer, vector, "add"), choice)


def function_vector(bench: Bench, options: FunctionVectorOptions) -> Tensor:
    """What the chosen heads write on average, summed: [width]."""
    assert options.which is not None
    model = bench.model
    for layer, head in options.which:
        if not (0 <= layer < model.n_layers and 0 <= head < model.n_heads):
            raise InputError(
                f"learner 'function-vector': option 'which': {model.name} has layers 0 to {model.n_layers - 1} and "
                f"heads 0 to {model.n_heads - 1}, found {[layer, head]}"
            )
    means = bench.once(("mean heads", options.prompts), lambda: mean_heads(bench, options.prompts))
    return torch.stack([written_by_heads(model, layer, means[layer])[head] for layer, head in options.which]).sum(0)


def strongest(effects: Tensor, heads: int) -> tuple[Head, ...]:
    """The heads of largest effect, [layers, heads], the strongest first.

    >>> strongest(torch.tensor([[0.1, 0.5], [0.3, 0.0]]), 2)
    ((0, 1), (1, 0))
    """
    best = effects.flatten().argsort(descending=True, stable=True)[:heads].tolist()
    return tuple((i // effects.shape[1], i % effects.shape[1]) for i in best)


def mean_heads(bench: Bench, prompts: int) -> Tensor:
    """What each head hands to the output projection at the end of context + spare example, on average:
    [layers, heads, head_dim].
    """
    asked = bench.materials(prompts, "a function vector")
    seen = bench.model.read(asked, bench.prefix, want=frozenset({"heads"}))
    return seen.extras["heads"].mean(0).to(seen.device)


@torch.no_grad()
def indirect_effects(bench: Bench, prompts: int) -> Tensor:
    """The indirect effect of every head on every prompt, [prompts, layers, heads]: how much likelier, among the
    classes, the right label becomes when the head's mean output takes its output's place after demonstrations with
    shuffled labels.
    """
    model = bench.model
    asked = bench.materials(prompts, "the indirect effect of heads")
    if len(asked.queries) < SHUFFLES:
        raise InputError(
            f"task '{bench.lesson.episode.task.name}': the indirect effect of heads is taken of at least {SHUFFLES} "
            f"spare training examples (or, where none is spare, demonstrations), and there are {len(asked.queries)}; "
            "give more, or name the heads yourself (option 'which')"
        )
    means = bench.once(("mean heads", prompts), lambda: mean_heads(bench, prompts))
    found = torch.zeros(len(asked.queries), model.n_layers, model.n_heads, dtype=torch.float64)
    for group in range(SHUFFLES):
        members = range(group, len(asked.queries), SHUFFLES)
        lesson = shuffled(asked.only(members), group)
        prefix = model.prefix(lesson.context)
        before = right_probability(model.read(lesson, prefix))
        every = repeated(lesson, model.n_heads)
        for layer in range(model.n_layers):
            with model.intervened(OnHeads(layer, _one_each(means[layer], every))):
                after = right_probability(model.read(every, prefix))
            found[group::SHUFFLES, layer] = (after.view(model.n_heads, -1) - before).T.cpu()
    return found


def right_probability(trace: Trace) -> Tensor:
    """Of the right label among the classes, [queries]."""
    return trace.label_logprobs.double().softmax(-1).gather(-1, trace.labels[:, None]).squeeze(-1)


def shuffled(lesson: Lesson, draw: int) -> Lesson:
    """The same demonstrations with their labels dealt out anew."""
    order = np.random.default_rng([lesson.episode.seed, 7, draw]).permutation(lesson.shots_used)
    shown = lesson.demonstrations
    context = lesson.bos
    for demonstration, i in zip(shown, order, strict=True):
        context += demonstration.prompt + shown[i].label + lesson.separator
    return replace(lesson, context=context)


def repeated(lesson: Lesson, times: int) -> Lesson:
    """Every query so many times, under names that tell the repetitions apart: all of one pass, then the next."""
    return replace(
        lesson,
        queries=lesson.queries * times,
        labels=lesson.labels * times,
        query_ids=tuple(f"{i}:{name}" for i in range(times) for name in lesson.query_ids),
    )


def _one_each(means: Tensor, every: Lesson) -> Any:
    """In the i-th repetition of the queries head i gives its mean, and the others what they give."""
    per_head = len(every.queries) // len(means)
    head_of = {name: i // per_head for i, name in enumerate(every.query_ids)}

    def edit(heads: Tensor, session: Session) -> Tensor:
        rows = torch.arange(len(heads), device=heads.device)
        which = torch.tensor([head_of[name] for name in session.query_ids], device=heads.device)
        changed = heads.clone()
        changed[rows, which] = means.to(heads)[which]
        return changed

    return edit
