"""The key and value weights of a layer, wherever an architecture keeps them."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """One weight matrix or bias, or the slice of a fused one, always seen as [out, in] or [out].

    A fused query-key-value matrix keeps its rows either ``stacked`` (all queries, all keys, all values) or
    ``interleaved`` (query, key, value of the first head, then of the second); GPT-2's is also transposed.
    """

    layer: int
    role: Literal["query", "key", "value"]
    kind: Literal["weight", "bias"]
    parameter: str  # its name in hf.named_parameters()
    rows: tuple[int, int] | None = None  # first and last + 1 row of a stacked matrix
    head: tuple[int, int, int] | None = (
        None  # heads, head width, and which of (query, key, value), interleaved
    )
    transposed: bool = False

    @property
    def name(self) -> str:
        return f"layers.{self.layer}.{self.role}.{self.kind}"

    def view(self, tensor: Tensor) -> Tensor:
        """The part as a view of its parameter (or of the parameter's gradient); writing to it writes there."""
        if self.transposed and self.kind == "weight":
            tensor = tensor.T
        if self.rows is not None:
            tensor = tensor[self.rows[0] : self.rows[1]]
        if self.head is not None:
            heads, width, which = self.head
            tensor = tensor.unflatten(0, (heads, 3, width))[:, which]
        return tensor

    def view_output(self, output: Tensor) -> Tensor:
        """This part's share of what its projection gives: [..., out] or, interleaved, [..., heads, head width]."""
        if self.rows is not None:
            return output[..., self.rows[0] : self.rows[1]]
        if self.head is not None:
            heads, width, which = self.head
            return output.unflatten(-1, (heads, 3, width))[..., which, :]
        return output

    def get(self, tensor: Tensor) -> Tensor:
        """The part of its parameter as [out, in] or [out]."""
        view = self.view(tensor)
        return view.flatten(0, 1) if self.head is not None else view

    def add_(self, tensor: Tensor, change: Tensor) -> None:
        """Add a change, [out, in] or [out], to the part in place."""
        view = self.view(tensor)
        view.add_(change.view(view.shape).to(view.dtype))

    def set_(self, tensor: Tensor, value: Tensor) -> None:
        """Overwrite the part in place."""
        view = self.view(tensor)
        view.copy_(value.view(view.shape))
