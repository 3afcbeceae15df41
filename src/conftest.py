"""For the doctests: each leaves the registries as it found them."""

from collections.abc import Iterator
from typing import Any

import pytest

from dualscope.core.registry import Registry


@pytest.fixture(scope="session")
def registries() -> list[Registry[Any]]:
    """All of them, after everything that registers itself when it is imported has been."""
    from dualscope.learners import COMBINATORS, LEARNERS
    from dualscope.metrics import METRICS
    from dualscope.models.architecture.families import FAMILIES
    from dualscope.models.attention_kinds import KINDS
    from dualscope.regression import EXPERIMENTS
    from dualscope.studies.execute.engines import ENGINES
    from dualscope.tasks.sources import GENERATORS
    from dualscope.theory import IDENTITIES
    from dualscope.theory.functional import KERNELS

    return [COMBINATORS, ENGINES, EXPERIMENTS, FAMILIES, GENERATORS, IDENTITIES, KERNELS, KINDS, LEARNERS, METRICS]


@pytest.fixture(autouse=True)
def nothing_stays_registered(registries: list[Registry[Any]]) -> Iterator[None]:
    """A name that a doctest leaves behind would change what the next one finds."""
    before = {registry.noun: list(registry) for registry in registries}
    yield
    assert {registry.noun: list(registry) for registry in registries} == before
