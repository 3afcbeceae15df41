"""What an attention kind may change: the values that are mixed, and the weights that mix them."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.core.registry import Registry
from dualscope.models.architecture.parts import Qkv


class AttentionKind(BaseModel):
    """Softmax attention as it is, and the base of the others.

    A kind is ``mix(softmax(scores)) @ values(key, value)``; everything it may need is in these two, so
    that one attention function serves them all, in a language model and in a regression transformer alike.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @property
    def adapted(self) -> tuple[Qkv, ...]:
        """Which projections ("key", "value") get a learned nonlinear part: see ``Augmented``."""
        return ()

    def values(self, key: Tensor, value: Tensor, others: Tensor) -> Tensor:
        """The values to mix. key, value: [..., keys, dim]; others[..., i, j]: may token i look at another
        token j?
        """
        return value

    def mix(self, weights: Tensor, visible: Tensor) -> Tensor:
        """The weights to mix with. weights, visible: [..., queries, keys]; the last query stands at the
        last key.
        """
        return weights

    def described(self) -> dict[str, Any]:
        """Name and options, as a configuration file keeps them; ``make_kind`` reads it back."""
        name = next(name for name in KINDS if KINDS[name] is type(self))
        return {"name": name, **self.model_dump(mode="json")}


KINDS: Registry[type[AttentionKind]] = Registry("attention kind")
KINDS.add("softmax", AttentionKind, aliases=("vanilla",))


def make_kind(options: Mapping[str, Any]) -> AttentionKind:
    """The kind that a configuration describes.

    >>> make_kind({"name": "momentum", "eta": 0.5}).described()
    {'name': 'momentum', 'eta': 0.5}
    >>> make_kind({"name": "momentum", "etta": 0.5})
    Traceback (most recent call last):
    dualscope.core.errors.InputError: attention kind 'momentum': unknown field 'etta' (found 0.5): did you mean eta? \
Known: eta.
    """
    if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
        raise InputError(f"an attention kind is a mapping with a name, such as {{name: momentum}}; found {options!r}")
    settings = {key: value for key, value in options.items() if key != "name"}
    return validated(KINDS[options["name"]], settings, f"attention kind '{options['name']}'")


def own_positions(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Where each query stands among the keys, the last at the last: [queries]."""
    return torch.arange(keys - queries, keys, device=device)


# Augmented attention (Ren & Liu): a nonlinear part in the values, the keys, or both.


_ADAPTED: dict[str, tuple[Qkv, ...]] = {"g1": ("value",), "g2": ("key",), "both": ("key", "value")}


@KINDS.register("augmented")
class Augmented(AttentionKind):
    """Values g1(W_V x) and keys g2(W_K x), where g(W x) = W x + c W2 relu(W1 x): data augmentation,
    learned.
    """

    parts: Literal["g1", "g2", "both"] = "both"
    c: float = Field(default=1.0, allow_inf_nan=False)
    hidden: int = Field(default=16, ge=1)

    @property
    def adapted(self) -> tuple[Qkv, ...]:
        return _ADAPTED[self.parts]


class Adapter(nn.Module):
    """c W2 relu(W1 x). W2 starts at zero, so that a model begins as it would without it.

    With ``copies`` it is that many independent ones, and the input's first dimension says which.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int,
        c: float,
        copies: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        lead = () if copies is None else (copies,)
        self.c = c
        self.first = nn.Parameter(torch.randn(*lead, hidden, inputs, generator=generator) * inputs**-0.5)
        self.second = nn.Parameter(torch.zeros(*lead, outputs, hidden))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]; [copies, ..., inputs] -> [copies, ..., outputs]."""
        if self.first.dim() == 2:
            return self.c * torch.relu(inputs @ self.first.mT) @ self.second.mT
        flat = inputs.reshape(len(self.first), -1, inputs.shape[-1])
        return (self.c * torch.relu(flat @ self.first.mT) @ self.second.mT).reshape(*inputs.shape[:-1], -1)


@KINDS.register("momentum")
class Momentum(AttentionKind):
    """MoAttn(V, K, q_t) = V softmax(K^T q_t / sqrt d) + sum_{i<t} eta^{t-i} v_i."""

    eta: float = Field(default=0.5, ge=0, lt=1)

    def mix(self, weights: Tensor, visible: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]
        own = own_positions(queries, keys, weights.device)
        distance = own[:, None] - torch.arange(keys, device=weights.device)  # [queries, keys], t - i
        decay = torch.where(distance > 0, self.eta ** distance.clamp(min=1).to(weights.dtype), 0)
        return weights + decay * visible  # padding has no momentum


@KINDS.register("negative")
class Negative(AttentionKind):
    """v_i - (beta / |N(i)|) sum_{j in N(i)} v_j: contrastive learning's negatives, in the values alone.

    N(i), which the paper leaves open, is here the (up to) k tokens that token i may look at whose keys are
    least like its own, by k_i . k_j, the exponent of the dual model's kernel. It depends on keys alone, so
    a cache of keys and values is enough to go on with; a token that sees no other has no negatives.
    """

    k: int = Field(default=1, ge=1)
    beta: float = Field(default=0.1, allow_inf_nan=False)

    def values(self, key: Tensor, value: Tensor, others: Tensor) -> Tensor:
        # The choice itself has no gradient.
        likeness = (key @ key.mT).detach().masked_fill(~others, torch.inf)
        least = likeness.topk(min(self.k, key.shape[-2]), dim=-1, largest=False)
        chosen = torch.zeros_like(likeness).scatter(-1, least.indices, torch.isfinite(least.values).to(likeness.dtype))
        count = chosen.sum(-1, keepdim=True).clamp(min=1)
        return value - self.beta * (chosen / count).to(value.dtype) @ value


@KINDS.register("regularized")
class Regularized(AttentionKind):
    """The dual model's loss gets (alpha / 2 eta) |W|^2.

    ``published`` is the form printed in the paper, W_V X [softmax(.) - alpha I]: every token loses alpha
    times its own value. ``dual`` is what one gradient step on that loss gives exactly: W0, the part of the
    sum that no demonstration made, is scaled by (1 - alpha). For a token, W0 is its own term and the tokens
    before it are the demonstrations. The two forms do not coincide: the published one subtracts a whole
    value, the dual a share of the weight that the token gave itself.
    """

    alpha: float = Field(default=0.5, allow_inf_nan=False)
    form: Literal["published", "dual"] = "published"

    def mix(self, weights: Tensor, visible: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]
        own = own_positions(queries, keys, weights.device)
        identity = torch.nn.functional.one_hot(own, keys).to(weights.dtype)  # [queries, keys]
        if self.form == "published":
            return weights - self.alpha * identity
        return weights * (1 - self.alpha * identity)
