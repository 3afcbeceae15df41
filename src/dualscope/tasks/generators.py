"""Tasks whose examples are made up: a registry of generators, and the source that calls them."""

from collections.abc import Callable
from importlib import import_module

import numpy as np

from dualscope.core.errors import InputError
from dualscope.core.registry import Registry
from dualscope.tasks.sources import DataRow
from dualscope.tasks.task_config import GeneratorSource

# How many, and the randomness to use -> that many rows: the template's fields and "label".
Generator = Callable[[int, np.random.Generator], list[dict[str, str | int]]]
GENERATORS: Registry[Generator] = Registry("generator")
"""Functions that make up examples, by the name that a task file gives under ``source: {generator: {name: ...}}``.

>>> import numpy as np
>>> from dualscope import GENERATORS, Task
>>> Task.load("embedded-sst2").train[0].label in (0, 1)  # the generators that we ship are registered when one is used
True
>>> rows = GENERATORS["embedded-sst2"](3, np.random.default_rng(0))
>>> len(rows), sorted(rows[0])
(3, ['label', 'text'])
"""


class GeneratedRows:
    """Both splits come from one call, so a generator that never repeats itself keeps them disjoint."""

    def __init__(self, config: GeneratorSource) -> None:
        self.config = config
        self._rows: list[DataRow] | None = None

    def where(self, split: str) -> str:
        return f"generator '{self.config.name}', split {split}"

    def file(self, split: str) -> None:
        return None

    def rows(self, split: str) -> list[DataRow]:
        if self._rows is None:
            self._rows = self._generate()
        n = self.config.train
        return self._rows[:n] if split == "train" else self._rows[n:]

    def _generate(self) -> list[DataRow]:
        if self.config.name not in GENERATORS:
            import_module("dualscope.tasks.synthetic")  # registers the generators that we ship
        wanted = self.config.train + self.config.evaluation
        rows = GENERATORS[self.config.name](wanted, np.random.default_rng(self.config.seed))
        if len(rows) != wanted:
            raise InputError(f"generator '{self.config.name}' made {len(rows)} examples, {wanted} were asked for")
        return list(rows)
