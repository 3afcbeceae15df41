"""What the demonstrations' tokens leave behind while a learner trains on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.descent.parameters import wide
from dualscope.models.capture.session import Session, as_rows

if TYPE_CHECKING:
    from dualscope.descent.samples import Sample
    from dualscope.models.architecture.parts import Part
    from dualscope.models.model import Model


@dataclass
class Recorder:
    """Records of a training run. With ``kendall``, of every demonstration token at its (last) training step:

    - ``queries`` [layers, demonstration tokens, heads * head_dim]: query vectors, after rotary, unscaled;
    - ``inputs`` [layers, demonstration tokens, width]: the inputs of the key and value projections.

    Demonstration tokens are prompt and label of each demonstration in the lesson's order, without BOS. With
    ``dual``, of every token of every step, BOS too, such that the change of a weight is errors^T inputs:

    - ``dual_inputs`` [layers, tokens of all steps, width], ``dual_demonstrations`` [tokens of all steps],
      ``dual_positions`` (the token's place in its training sequence, BOS included);
    - ``errors_key``, ``errors_value`` [layers, tokens of all steps, out].
    """

    model: Model
    session: Session
    kendall: bool = False
    dual: bool = False
    learning: frozenset[tuple[int, str]] = frozenset()  # the layers and roles whose weights move
    _inputs: dict[int, Tensor] = field(default_factory=dict)  # of the pass in progress, by layer
    _outputs: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # by layer and role
    _pending: list[tuple[Sample, int, Tensor, dict[str, Tensor]]] = field(default_factory=list)
    _tokens: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _dual: list[tuple[Sample, int, Tensor, dict[str, Tensor]]] = field(default_factory=list)

    @property
    def on(self) -> bool:
        return self.kendall or self.dual

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on the key and value projections, inside ``with``."""
        with ExitStack() as stack:
            for part in self._weights():
                path = part.parameter.rpartition(".")[0]
                hook = self._hook(part)
                stack.callback(self.model.hf.get_submodule(path).register_forward_hook(hook).remove)
            yield

    def _weights(self) -> list[Part]:
        return [part for part in self.model.parts() if part.kind == "weight"]

    def _hook(self, part: Part) -> Any:
        def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if torch.is_grad_enabled():  # not while a block is run again to see its moved weights
                self._inputs[part.layer] = as_rows(args[0]).detach()
                self._outputs[part.layer, part.role] = output

        return hook

    def outputs(self, layer: int | None = None) -> list[Tensor]:
        """The learning projections' outputs in the pass in progress, to take gradients of."""
        return [self._outputs[key] for key in self._learning(layer)] if self.dual else []

    def _learning(self, layer: int | None) -> list[tuple[int, str]]:
        return [key for key in sorted(self.learning) if layer is None or key[0] == layer]

    def note(self, sample: Sample, gradients: Sequence[Tensor], layer: int | None = None) -> None:
        """After a pass: keep what it showed. ``gradients`` are those of ``outputs(layer)``."""
        if not self.on:
            return
        keys = self._learning(layer)
        errors = dict(zip(keys, gradients, strict=False))
        for part in self._weights():
            if part.role == "key" and (layer is None or part.layer == layer):
                self._note_layer(sample, part.layer, errors)

    def _note_layer(self, sample: Sample, layer: int, errors: dict[tuple[int, str], Tensor]) -> None:
        inputs = self._inputs[layer][0]
        if self.kendall:
            queries = self.session.seen["queries"][layer][0].transpose(0, 1).flatten(1).detach()
            self._tokens[sample.index, sample.own, layer] = (queries[sample.own :], inputs[sample.own :])
        if self.dual:
            found: dict[str, Tensor] = {}
            for part in self._weights():
                if part.layer == layer and (layer, part.role) in errors:
                    error = as_rows(errors[layer, part.role])[0]  # [tokens, out of the projection]
                    found[part.role] = part.get(error if part.transposed else error.T).T
            waiting = self._pending if found else self._dual  # where nothing learns, nothing is scaled
            waiting.append((sample, layer, inputs, found))

    def commit(self, lr: float, factors: Tensor | None, cut: bool) -> None:
        """The step is taken: what was pending is scaled as the step was, by the rate and its layer's factor."""
        if not self.dual:
            return
        if cut:
            raise InputError("a step that is cut element by element has no dual form: use another clip, or no dual")
        for sample, layer, inputs, errors in self._pending:
            scale = -lr if factors is None else -lr * factors[layer].to(inputs.device)
            self._dual.append((sample, layer, inputs, {role: error * scale for role, error in errors.items()}))
        self._pending.clear()

    def apart(self) -> Recorder:
        """One that sees the same passes, and keeps what it notes for itself."""
        return replace(self, _pending=[], _tokens={}, _dual=[])

    def take_over(self, other: Recorder, sample: Sample) -> None:
        """Copies of what another noted of ``sample`` when it was filled up; of its own tokens alone."""
        end = len(sample.tokens)
        for (_, _, layer), (queries, inputs) in other._tokens.items():
            own = queries[sample.own : end].clone(), inputs[sample.own : end].clone()
            self._tokens[sample.index, sample.own, layer] = own
        for _, layer, inputs, errors in other._dual:
            begun = {role: error[:end].clone() for role, error in errors.items()}
            self._dual.append((sample, layer, inputs[:end].clone(), begun))

    def records(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        layers = range(self.model.n_layers)
        if self.kendall and self._tokens:
            places = sorted({(index, first) for index, first, _ in self._tokens})
            for number, name in enumerate(("queries", "inputs")):
                found[name] = self._stack(
                    [self._tokens[(*place, layer)][number] for place in places] for layer in layers
                )
        if self.dual and self._dual:
            found |= self._dual_records()
        return found

    def _stack(self, by_layer: Iterable[list[Tensor]]) -> Tensor:
        """Pieces of every layer, perhaps on several devices, as one tensor: [layers, tokens of all pieces, ...]."""
        return torch.stack([torch.cat(pieces).to(self.model.device) for pieces in by_layer])

    def _dual_records(self) -> dict[str, Tensor]:
        dtype = wide(self.model.dtype)
        by_layer = [[entry for entry in self._dual if entry[1] == layer] for layer in range(self.model.n_layers)]
        found = {"dual_inputs": self._stack([e[2] for e in own] for own in by_layer).to(dtype)}
        for role in ("key", "value"):
            part = next(p for p in self._weights() if p.role == role)
            width = part.get(self.model.hf.get_parameter(part.parameter)).shape[0]
            empty = {id(e): e[2].new_zeros(len(e[2]), width) for own in by_layer for e in own}
            found[f"errors_{role}"] = self._stack([e[3].get(role, empty[id(e)]) for e in own] for own in by_layer).to(
                dtype
            )
        lengths = [(e[0].index, len(e[0].tokens)) for e in by_layer[0]]
        device = found["dual_inputs"].device
        found["dual_demonstrations"] = torch.cat([torch.full((n,), i, device=device) for i, n in lengths])
        found["dual_positions"] = torch.cat([torch.arange(n, device=device) for _, n in lengths])
        return found


# The fine-tuned layer as linear attention to its training tokens.


KeyOrValue = Literal["key", "value"]


@dataclass(frozen=True)
class Dual:
    """The update of the key and value projections in dual form: dW = E^T X', a sum over training tokens.

    So the fine-tuned projection of a query's input x is W x + sum_t e_t (x'_t . x): linear attention whose keys
    are the inputs x'_t that the training tokens had at their step, and whose values are the errors e_t.
    """

    inputs: Tensor  # X' [layers, tokens, width]
    errors: dict[str, Tensor]  # E by role, [layers, tokens, out]
    demonstrations: Tensor  # [tokens]: which demonstration a token is of
    positions: Tensor  # [tokens]: its place in the training sequence, BOS included

    @classmethod
    def of(cls, log: Log) -> Dual:
        """From the log of a learner on a bench that wanted ``dual``."""
        records = log.records
        if "dual_inputs" not in records:
            raise InputError(
                'no dual form was recorded: ask for it with Bench(model, lesson, want=frozenset({"dual"})) and take a '
                "learner that changes keys and values by gradients"
            )
        return cls(
            records["dual_inputs"],
            {"key": records["errors_key"], "value": records["errors_value"]},
            records["dual_demonstrations"],
            records["dual_positions"],
        )

    def weight(self, layer: int, role: KeyOrValue) -> Tensor:
        """The primal: the change of the weight, [out, width]."""
        return self.errors[role][layer].mT @ self.inputs[layer]

    def bias(self, layer: int, role: KeyOrValue) -> Tensor:
        """The change of the bias, where the projection has one: the sum of the errors, [out]."""
        return self.errors[role][layer].sum(0)

    def scores(self, inputs: Tensor) -> Tensor:
        """How much a query attends to each training token, x'_t . x: [queries, layers, tokens].

        ``inputs`` [queries, layers, width] is what the trace holds as ``extras["layer_inputs"]``.
        """
        return torch.einsum("ltw,qlw->qlt", self.inputs, inputs.to(self.inputs))

    def change(self, inputs: Tensor, role: KeyOrValue) -> Tensor:
        """What attention to the training tokens adds to a projection, bias left out: [queries, layers, out]."""
        return torch.einsum("qlt,lto->qlo", self.scores(inputs), self.errors[role])

    def attention(self, inputs: Tensor, role: KeyOrValue) -> Tensor:
        """The norm of what each training token contributes, |e_t| |x'_t . x|: [queries, layers, tokens]."""
        found: Tensor = self.scores(inputs).abs() * self.errors[role].norm(dim=-1)
        return found


@dataclass(frozen=True)
class Log:
    """What a learner noted of its steps. What it has nothing to say about is None, or not among the records."""

    grad_norm: Tensor | None = None  # [steps, layers]
    step_norm: Tensor | None = None  # [steps, layers]: what the weights really moved
    update_norm: Tensor | None = None  # [layers], relative to the weights
    clipped_steps: int | None = None
    records: dict[str, Tensor] = field(default_factory=dict)  # see dualscope.descent.dual_records
