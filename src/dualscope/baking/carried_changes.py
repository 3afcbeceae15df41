"""What a learner changed, as what LoRA can carry: a matrix and a bias of linear layers. Everything else is refused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.descent.delta import Delta
from dualscope.learners.ceilings.context_patches import StaticPatch

if TYPE_CHECKING:
    from dualscope.learners.learner import Change
    from dualscope.models.model import Model


# A change of a weight matrix as the product of two thin ones: exactly where its rank allows it.


@dataclass(frozen=True)
class LowRankFactors:
    """dW = up @ down, and how much of dW it is.

    >>> factors = factored(torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0, 4.0])))
    >>> factors.rank, (factors.up @ factors.down).abs().round(decimals=4).tolist(), round(factors.lost, 4)
    (1, [[3.0, 0.0, 4.0], [6.0, 0.0, 8.0]], 0.0)
    """

    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank]
    whole_square: float  # |dW|^2
    lost_square: float  # |dW - up @ down|^2

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def lost(self) -> float:
        """|dW - up @ down| / |dW|; 0 of a change that is none."""
        return (self.lost_square / self.whole_square) ** 0.5 if self.whole_square else 0.0

    def cut_to(self, rank: int) -> LowRankFactors:
        """Its ``rank`` largest singular values alone: the nearest product of that rank."""
        if rank < 1:
            raise InputError(f"the rank of an adapter is at least 1, found {rank}")
        # The factors share the singular values' roots, so that a row's squared norm is the singular value.
        cut = self.down[rank:].double().square().sum(-1).square().sum()
        return replace(self, down=self.down[:rank], up=self.up[:, :rank], lost_square=self.lost_square + float(cut))


def factored(change: Tensor) -> LowRankFactors:
    """[out, in] -> its factors of the numerical rank: singular values above what rounding leaves in the change's dtype.

    A change that is zero has rank 1, because LoRA has no rank 0, and factors of zeros.
    """
    eye = torch.eye(change.shape[1], dtype=change.dtype, device=change.device)
    return product_factored(change, eye, change.dtype)


def product_factored(left: Tensor, right: Tensor, computed: torch.dtype = torch.float32) -> LowRankFactors:
    """The same of left @ right, [out, inner] and [inner, in], without making the product where ``inner`` is small."""
    left, right = left.detach().cpu().double(), right.detach().cpu().double()
    inner, shape = left.shape[1], (left.shape[0], right.shape[1])
    if inner < min(shape):
        (outer, left_core), (rows, right_core) = torch.linalg.qr(left), torch.linalg.qr(right.T)
        u, sizes, vt = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
        u, vt = outer @ u, vt @ rows.T
    else:
        u, sizes, vt = torch.linalg.svd(left @ right, full_matrices=False)
    noise = max(shape) * torch.finfo(computed).eps * float(sizes[0])
    kept = max(1, int((sizes > noise).sum()))
    squares, root = sizes.square(), sizes[:kept].sqrt()
    return LowRankFactors(
        (root[:, None] * vt[:kept]).float(),
        (u[:, :kept] * root).float(),
        float(squares.sum()),
        float(squares[kept:].sum()),
    )


CARRIED = "a change of the weights and biases of linear layers inside the blocks"


@dataclass(frozen=True)
class CarriedChange:
    """One linear layer's part of an adapter."""

    factors: LowRankFactors
    bias: Tensor | None  # [out]

    def cut_to(self, rank: int) -> CarriedChange:
        return replace(self, factors=self.factors.cut_to(rank))


def carried(model: Model, change: Change | None) -> dict[str, CarriedChange]:
    """By the name of the linear layer in the model; layers that do not change are left out."""
    if isinstance(change, StaticPatch):
        found = _of_patch(model, change)
    elif isinstance(change, Delta):
        found = _of_delta(model, change)
    else:
        what = "changes nothing" if change is None else f"changes the model by a {type(change).__name__}"
        raise InputError(
            f"this learner {what}, and LoRA carries {CARRIED}; take kv-distilled, gd, gd-tuned or static-patch"
        )
    if not found:
        raise InputError("nothing changed: the learner left every weight as it was, so there is nothing to bake")
    return found


def _of_delta(model: Model, delta: Delta) -> dict[str, CarriedChange]:
    """A fused matrix is carried whole: its change is zero where only keys and values moved, and its rank as low."""
    layers: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for parameter, change in delta.in_full(model).items():
        layer, _, kind = parameter.rpartition(".")
        layers[layer][kind] = change
    found = {}
    for layer, changes in layers.items():
        module = _linear(model, layer, changes)
        bias = changes.get("bias")
        bias = None if bias is None or not bias.any() else bias.detach().cpu().float()
        whole = changes.get("weight", torch.zeros(_shape(module)))
        matrix = whole if isinstance(module, nn.Linear) else whole.T
        if bool(matrix.any()) or bias is not None:
            found[layer] = CarriedChange(factored(matrix), bias)
    return found


def _of_patch(model: Model, patch: StaticPatch) -> dict[str, CarriedChange]:
    if not patch.every_token:
        raise InputError("this static-patch acts on one token of a query, and weights act on all: give it every_token")
    if model.has_experts:
        raise InputError(
            f"model '{model.name}' is a mixture of experts: peft takes a change of its MLPs, also of dense ones, for "
            "one of experts; take kv-distilled or gd-tuned, which change keys and values"
        )
    found = {}
    names = {module: name for name, module in model.hf.named_modules()}
    for layer, mlp in enumerate(patch.mlps):
        for weight, module in mlp.inputs.items():
            if weight in patch.left and bool(patch.left[weight].any()):
                name = weight.rpartition(".")[0]
                _linear(model, name, {"weight": module.get_parameter("weight")})
                found[name] = CarriedChange(product_factored(patch.left[weight], patch.right[layer]), None)
        name = names[mlp.output]
        module = _linear(model, name, {})
        scale = _residual_scale(model.blocks[layer])
        vector = (patch.vectors[layer] / scale).detach().cpu().float()
        found[name] = CarriedChange(factored(torch.zeros(_shape(module))), vector)
    return found


def _residual_scale(block: nn.Module) -> float:
    """What a block multiplies its MLP's output by (Granite, MiniCPM3)."""
    granite: Any = getattr(block, "residual_multiplier", 1.0)
    return float(getattr(block, "residual_scale", granite))


def _linear(model: Model, layer: str, changes: dict[str, Tensor]) -> nn.Module:
    """The layer, if LoRA can change it."""
    module: nn.Module = model.hf.get_submodule(layer)
    inside = layer.startswith(f"{model.family.blocks}.")
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    if not inside or not is_linear or not changes.keys() <= {"weight", "bias"}:
        where = "" if inside else " outside the blocks"
        raise InputError(
            f"the learner changes '{layer}', a {type(module).__name__}{where}, and LoRA carries {CARRIED}; let keys "
            "and values alone learn (gd-tuned with parameters=kv)"
        )
    return module


def _shape(module: nn.Module) -> tuple[int, int]:
    """[out, in]"""
    rows, columns = module.get_parameter("weight").shape
    return (rows, columns) if isinstance(module, nn.Linear) else (columns, rows)
