"""What an attention kind may change: the values that are mixed, and the weights that mix them."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.core.registry import Registry
from dualscope.models.parts import Qkv


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
    >>> make_kind({"name": "momentum", "eta": 2})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dualscope.core.errors.InputError: attention kind 'momentum', option 'eta': ... Its options: eta.
    """
    if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
        raise InputError(f"an attention kind is a mapping with a name, such as {{name: momentum}}; found {options!r}")
    kind = KINDS[options["name"]]
    try:
        return kind(**{key: value for key, value in options.items() if key != "name"})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        known = ", ".join(kind.model_fields) or "none"
        raise InputError(
            f"attention kind '{options['name']}', option '{field}': {first['msg']} (found "
            f"{first['input']!r}). Its options: {known}."
        ) from None


def own_positions(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Where each query stands among the keys, the last at the last: [queries]."""
    return torch.arange(keys - queries, keys, device=device)
