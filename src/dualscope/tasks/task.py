"""A text-classification data set with its template and label words."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from dualscope.core.config_file import read_config
from dualscope.core.errors import InputError, suggest
from dualscope.tasks.catalog import catalog_folder, catalog_names
from dualscope.tasks.config import Splits, TaskConfig
from dualscope.tasks.example import Example
from dualscope.tasks.generators import GeneratedRows
from dualscope.tasks.hub import HubRows
from dualscope.tasks.mapping import to_examples
from dualscope.tasks.sources import DataFolderRows, FileRows, Source


class Task:
    """What a task file describes; its examples are read when they are first asked for.

    >>> task = Task.load("sst2")
    >>> task.prompt(Example(id="train:0", fields={"sentence": "a fine film"}, label=1))
    'Sentence: a fine film Label:'
    >>> task.answer(1)
    ' Positive'
    """

    def __init__(self, config: TaskConfig, source: Source) -> None:
        self.config = config
        self.source = source

    @classmethod
    def load(cls, name: str | Path, data: str | Path | None = None, offline: bool = False) -> "Task":
        """A task of the catalog by name, or any by the path of its YAML file.

        ``data`` is a folder with ``<task>/<split>.jsonl`` (or csv, tsv, parquet) to read in place of the hub.
        """
        path = _task_file(str(name))
        config = _one_split_a_file(read_config(path, TaskConfig), path.parent)
        return cls(config, _source(config, path.parent, Path(data) if data is not None else None, offline))

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def template(self) -> str:
        return self.config.template

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def separator(self) -> str | None:
        """The text between demonstrations; None stands for the tokenizer's end-of-sequence token."""
        return self.config.separator

    @cached_property
    def train(self) -> Sequence[Example]:
        """What demonstrations are drawn from."""
        return self._examples(self.config.splits.train)

    @cached_property
    def evaluation(self) -> Sequence[Example]:
        """What queries are drawn from; it may be the same split."""
        if self.config.splits.evaluation == self.config.splits.train:
            return self.train
        return self._examples(self.config.splits.evaluation)

    @cached_property
    def digest(self) -> str:
        """A hash of all that a task puts before a model: examples, template, label words, separator."""
        hasher = hashlib.sha256()
        head = [self.template, self.labels, self.separator]
        rows = ([e.id, dict(e.fields), e.label] for split in (self.train, self.evaluation) for e in split)
        for part in (head, *rows):
            hasher.update(json.dumps(part, sort_keys=True).encode() + b"\n")
        return hasher.hexdigest()

    def prompt(self, example: Example) -> str:
        """The template with the example's fields in it: all that stands before the answer."""
        return self.template.format_map(example.fields)

    def answer(self, label: int) -> str:
        """A space and the label word."""
        return f" {self.labels[label]}"

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def _examples(self, split: str) -> Sequence[Example]:
        return to_examples(self.source.rows(split), self.config, split, self.source.where(split))


def _task_file(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in catalog_names():
        raise InputError(
            f"unknown task '{name}': {suggest(name, catalog_names())} A task of your own is given by "
            f"the path of its .yaml file."
        )
    return catalog_folder() / f"{name}.yaml"


def _one_split_a_file(config: TaskConfig, folder: Path) -> TaskConfig:
    """Two names of one file are one split: ids tell demonstrations from queries, and they begin with the name."""
    files, splits = config.source.files, config.splits
    if (
        files is None
        or (folder / files[splits.train]).resolve() != (folder / files[splits.evaluation]).resolve()
    ):
        return config
    return config.model_copy(update={"splits": Splits(train=splits.train, evaluation=splits.train)})


def _source(config: TaskConfig, folder: Path, data: Path | None, offline: bool) -> Source:
    if config.source.files is not None:
        return FileRows(config.source.files, folder)
    if config.source.generator is not None:
        return GeneratedRows(config.source.generator)
    assert config.source.hub is not None  # TaskConfig has seen to it
    if data is not None:
        return DataFolderRows(data, config.name)
    named = config.label_values is not None and all(isinstance(value, str) for value in config.label_values)
    return HubRows(config.source.hub, folder, config.label, named, config.name, offline)
