"""One change of every block for all queries, fitted on what the context does to spare examples.

`context-patch` is exact because every query has a change of its own; this one is the same for all, and can fail.
It acts where the label is predicted, or on every token, as weights do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from dualscope.choosing.spare_examples import ridge
from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.learners.hidden_states.task_vector import random_vector
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.architecture.mlp import Mlp, mlps_of
from dualscope.models.capture.block_hooks import first_of, put, rows_of
from dualscope.models.loading.adapter import matrix
from dualscope.models.reading.context_patch import Inside, InsideNotes, patch_of

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


class StaticPatchOptions(Options):
    matrix: bool = Field(True, description="also a change of the MLP's input projection, not the vector alone")
    fit: int = Field(64, ge=2, description="spare examples that it is fitted on")
    every_token: bool = Field(
        False, description="it acts on every token, as weights do, and not only where a label is predicted"
    )


@dataclass(frozen=True)
class StaticPatch:
    """By layer a vector that the block's output gains; by weight a matrix that its input projection gains.

    A matrix is kept as left @ right: it has no higher rank than there were examples.
    """

    mlps: list[Mlp]
    vectors: dict[int, Tensor] = field(default_factory=dict)
    left: dict[str, Tensor] = field(default_factory=dict)  # weight -> [out, examples]
    right: dict[int, Tensor] = field(default_factory=dict)  # layer -> [examples, in]
    every_token: bool = False

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return model.intervened(self)

    def randomised(self, seed: int, draw: int) -> StaticPatch:
        """Random vectors, and random matrices of the same rank, each of the norm that it replaces."""

        def like(tensor: Tensor, number: int) -> Tensor:
            noise = random_vector(tensor.shape, seed, draw * 10_000 + number).to(tensor)
            scale: Tensor = tensor.norm() / noise.norm()
            return noise * scale

        vectors = {layer: like(vector, layer) for layer, vector in self.vectors.items()}
        left = {}
        for number, (name, tensor) in enumerate(self.left.items()):
            layer = next(i for i, mlp in enumerate(self.mlps) if name in mlp.inputs)
            noise = like(tensor, 5_000 + number)
            left[name] = noise * _norm(tensor, self.right[layer]) / _norm(noise, self.right[layer])
        return replace(self, vectors=vectors, left=left)

    def weights(self) -> dict[str, Tensor]:
        """The matrices in full, each in the layout of the weight that it changes."""
        found = {}
        for layer, mlp in enumerate(self.mlps):
            for name, module in mlp.inputs.items():
                if name in self.left:
                    change = self.left[name] @ self.right[layer]
                    found[name] = change if isinstance(module, nn.Linear) else change.T
        return found

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if layer not in self.vectors:
            return
        mlp, vector = self.mlps[layer], self.vectors[layer]

        def on_input(name: str) -> Any:
            def gain(fed: Tensor) -> Tensor:
                return (fed.to(vector) @ self.right[layer].T) @ self.left[name].T

            def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
                if self.every_token:
                    return output + gain(args[0]).to(output)
                assert session.acts is not None
                batch = len(session.query_ids)
                add = gain(rows_of(args[0].view(batch, -1, args[0].shape[-1]), session.acts))
                whole = output.view(batch, -1, output.shape[-1])
                return put(whole, session.acts, lambda rows: rows + add.to(rows)).view(output.shape)

            return hook

        def gains(_: nn.Module, __: Any, output: Any) -> Any:
            hidden = first_of(output)
            if self.every_token:
                changed = hidden + vector.to(hidden)
            else:
                whole = hidden.view(len(session.query_ids), -1, hidden.shape[-1])
                changed = put(whole, session.acts, lambda rows: rows + vector.to(rows)).view(hidden.shape)
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        for name, module in mlp.inputs.items():
            if name in self.left:
                stack.callback(module.register_forward_hook(on_input(name)).remove)
        place = mlp.output if mlp.normed else model.blocks[layer]
        stack.callback(place.register_forward_hook(gains).remove)


def _norm(left: Tensor, right: Tensor) -> Tensor:
    """|left @ right| without making it."""
    return torch.sqrt(((left.T @ left) * (right @ right.T)).sum().clamp(min=0))


@LEARNERS.register("static-patch")
class StaticPatchLearner(Learner[StaticPatchOptions]):
    """The context as one fixed change of every block, a vector and a matrix: fitted, and the same for all queries."""

    role = "ceiling"
    options = StaticPatchOptions

    def learn(self, bench: Bench, lr: float | None, options: StaticPatchOptions) -> Learned:
        patch = fitted(bench, options)
        return Learned(self.read(bench, patch, options), patch)


@torch.no_grad()
def fitted(bench: Bench, options: StaticPatchOptions) -> StaticPatch:
    """Layer by layer: what the context changes there, once all layers below are patched."""
    model = bench.model
    asked = bench.materials(options.fit, "static-patch")
    patch = StaticPatch(bench.once("mlps", lambda: mlps_of(model)), every_token=options.every_token)
    there = InsideNotes(patch.mlps)
    with model.intervened(there):
        model.read(asked, bench.prefix)
    for layer, mlp in enumerate(patch.mlps):
        here = InsideNotes(patch.mlps, only=layer)
        with model.intervened(patch, here):
            model.read(asked)

        def both(what: str, layer: int = layer, here: InsideNotes = here) -> tuple[Tensor, Tensor]:
            return _stack(here.found, asked, layer, what), _stack(there.found, asked, layer, what)

        carried, carried_c = both("carried")
        patch.vectors[layer] = (carried_c - carried).mean(0)
        if options.matrix and not mlp.parallel:
            fed, fed_c = both("fed")
            dual = ridge(fed, fed_c - fed)  # [examples, examples]
            patch.right[layer] = fed
            for name, module in mlp.inputs.items():
                patch.left[name] = (dual @ ((fed_c - fed) @ matrix(module).to(fed).T)).T
    return patch


def _stack(found: dict[Any, Inside], asked: Lesson, layer: int, what: str) -> Tensor:
    rows = torch.stack([getattr(found[query, None, layer], what) for query in asked.query_ids])
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


@LEARNERS.register("context-patch")
class ContextPatchLearner(Learner[Options]):
    """In-context learning itself, written as a change of the MLP's weights for each query: exact, decides nothing."""

    role = "ceiling"
    ranked = False  # an identity of every model

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        if bench.lesson.read_at != "prompt-end":
            raise InputError(
                "context-patch is made where the label is predicted, and here traces are read at the first label's "
                "token; use read_at: prompt-end"
            )
        patch = patch_of(bench.model, bench.lesson, bench.prefix)
        with patch.applied(bench.model):
            trace = bench.model.read(bench.lesson, want=bench.read_want)
        return Learned(trace, patch, of_queries=True)
