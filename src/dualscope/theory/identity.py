"""An identity: two computations that must give the same numbers, and how far apart they may be."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dualscope.core.errors import InputError, suggest
from dualscope.core.registry import Registry


@dataclass(frozen=True)
class TwoSides:
    """Both sides of an equality, as tensors of one shape.

    >>> sides = TwoSides(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    >>> round(sides.error, 4)  # |left - right| / |right|
    0.0925
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        if self.left.shape != self.right.shape:
            raise InputError(f"the sides differ in shape: {list(self.left.shape)} and {list(self.right.shape)}")

    @property
    def error(self) -> float:
        """Relative L2 distance (absolute where the right side is exactly zero)."""
        distance = torch.linalg.vector_norm((self.left - self.right).double())
        size = torch.linalg.vector_norm(self.right.double())
        return float(distance / size) if size > 0 else float(distance)


@dataclass(frozen=True)
class AtMost(TwoSides):
    """Both sides of an inequality left <= right with right > 0; the error is the worst excess, 0 if there
    is none.

    >>> AtMost(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 4.0])).error
    0.0
    >>> AtMost(torch.tensor([1.0, 6.0]), torch.tensor([4.0, 4.0])).error
    0.5
    """

    @property
    def error(self) -> float:
        excess = (self.left.double() - self.right.double()) / self.right.double()
        # Not clamp alone: a NaN on either side must not pass for "no excess".
        return float(excess.max().clamp(min=0.0)) if bool(excess.isfinite().all()) else float("nan")


class Draw:
    """Seeded random tensors. The float32 numbers are the float64 ones rounded, so errors compare like with
    like.

    >>> a, b = Draw(0), Draw(0, torch.float32)
    >>> torch.equal(a.normal(2, 3).float(), b.normal(2, 3))
    True
    """

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.seed, self.dtype = seed, dtype
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def weight(self, rows: int, columns: int) -> Tensor:
        """[rows, columns], scaled so that it keeps the size of what it multiplies."""
        found: Tensor = self.normal(rows, columns) / columns**0.5
        return found

    def classes(self, count: int, n: int) -> Tensor:
        """[n] class numbers below ``count``."""
        return torch.randint(count, (n,), generator=self.generator)


@dataclass(frozen=True)
class Identity:
    """One line of ``dualscope theory``: what is claimed, by whom, and a seeded draw on which to check it."""

    name: str
    topic: str
    statement: str
    reference: str
    check: Callable[[Draw], TwoSides]
    tolerance: float = 1e-10
    tolerance32: float = 1e-4
    kind: str = "exact"  # exact | approximation | inequality | statistical

    def sides(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> TwoSides:
        """Both sides on the draw of this seed."""
        return self.check(Draw(seed, dtype))


IDENTITIES: Registry[Identity] = Registry("identity")

# The order of reading: each topic is a module, and builds on those before it.
TOPICS = (
    "linear-layer",
    "icl-dual",
    "linear-attention-step",
    "preconditioned",
    "functional",
    "features",
    "softmax-dual",
    "attention-variants",
    "representation",
    "bound",
    "likeness",
    "closed-forms",
)


def identity(
    name: str, statement: str, reference: str, tolerance: float = 1e-10, tolerance32: float = 1e-4, kind: str = "exact"
) -> Callable[[Callable[[Draw], TwoSides]], Callable[[Draw], TwoSides]]:
    """Registers a check under a name; its topic is the module it stands in (``linear_layer`` ->
    ``linear-layer``).
    """

    def add(check: Callable[[Draw], TwoSides]) -> Callable[[Draw], TwoSides]:
        topic = check.__module__.rsplit(".", 1)[-1].replace("_", "-")
        IDENTITIES.add(name, Identity(name, topic, statement, reference, check, tolerance, tolerance32, kind))
        return check

    return add


def chosen(only: tuple[str, ...] = ()) -> list[Identity]:
    """The identities of these names or topics, in the order of reading; all of them if none is named."""
    everything = sorted((IDENTITIES[name] for name in IDENTITIES), key=lambda one: TOPICS.index(one.topic))
    known = {one.name for one in everything} | {one.topic for one in everything}
    for name in only:
        if name not in known:
            raise InputError(f"--only: unknown identity or topic '{name}': {suggest(name, known)}")
    return [one for one in everything if not only or one.name in only or one.topic in only]


@dataclass(frozen=True)
class CheckedIdentity:
    """An identity's errors in both precisions, and whether both are within what it states."""

    identity: Identity
    error: float
    error32: float

    @property
    def passed(self) -> bool:
        # Written so that NaN fails.
        return self.error <= self.identity.tolerance and self.error32 <= self.identity.tolerance32


def judge(one: Identity, seed: int = 0) -> CheckedIdentity:
    """Checks an identity in float64 and in float32 on the draw of one seed."""
    return CheckedIdentity(one, one.sides(seed).error, one.sides(seed, torch.float32).error)
