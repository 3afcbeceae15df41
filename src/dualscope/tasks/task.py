"""A text-classification data set with its template and label words."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from dualscope.core.config_file import read_config, validated
from dualscope.core.errors import InputError, suggest
from dualscope.tasks.catalog import catalog_folder, catalog_names
from dualscope.tasks.mapping import BadRow, Example, Typed, as_row, mapped, to_examples
from dualscope.tasks.sources import (
    DataFolderRows,
    DataRow,
    FileRows,
    GeneratedRows,
    HubRows,
    MemoryRows,
    RowSource,
    is_large,
    label_column,
    label_words,
    rows_of,
    text_column,
    words_in,
)
from dualscope.tasks.task_config import Splits, TaskConfig

TEMPLATE = "Sentence: {text} Label:"  # of one's own texts, where nothing else is said


class Task:
    """What a task file describes; its examples are read when they are first asked for.

    >>> task = Task.load("sst2")
    >>> task.prompt(Example(id="train:0", fields={"sentence": "a fine film"}, label=1))
    'Sentence: a fine film Label:'
    >>> task.answer(1)
    ' Positive'
    """

    def __init__(self, config: TaskConfig, source: RowSource | None, chat: bool = False) -> None:
        self.config = config
        self.source = source
        self.chat = chat
        self._skipped: dict[str, tuple[BadRow, ...]] = {}

    @classmethod
    def load(
        cls, name: str | Path, data: str | Path | None = None, offline: bool = False, chat: bool = False
    ) -> "Task":
        """A task of the catalog by name, or any by the path of its YAML file.

        Args:
            name: A name of the catalog (`catalog_names`), or the path of a YAML file.
            data: A folder with ``<task>/<split>.jsonl`` (or csv, tsv, parquet) to read in place of the hub.
            offline: Whether nothing may be fetched.
            chat: Whether demonstrations are turns of a conversation, by the chat template of a model's own tokenizer.
        """
        path = _task_file(str(name))
        config = _one_split_a_file(read_config(path, TaskConfig), path.parent)
        source = _source(config, path.parent, Path(data) if data is not None else None, offline)
        return cls(config, source, chat)

    @classmethod
    def from_examples(
        cls,
        examples: Sequence[Typed],
        *,
        labels: Sequence[str],
        template: str,
        name: str = "examples",
        separator: str | None = None,
        chat: bool = False,
    ) -> "Task":
        """A task of one's own examples, in memory.

        `Episode.of` takes the examples unchanged, `Episode.draw` draws from them.

        Args:
            examples: Mappings of the template's fields and ``label`` (the word or its index), or, where the template
                has one field, pairs of text and label.
            labels: The label words, in the order of the classes.
            template: How a prompt is made of an example: ``"Review: {text} Sentiment:"``.
            name: What rows and reports call the task.
            separator: The text between demonstrations; None: the tokenizer's end-of-sequence token.
            chat: Whether demonstrations are turns of a conversation.

        >>> task = Task.from_examples(
        ...     [("a fine film", "good"), ("a dull plot", "bad")], labels=["bad", "good"], template="{text} It was"
        ... )
        >>> [task.prompt(example) + task.answer(example.label) for example in task.train]
        ['a fine film It was good', 'a dull plot It was bad']
        """
        fields: dict[str, Any] = {
            "name": name,
            "splits": {"train": "examples", "evaluation": "examples"},
            "template": template,
            "labels": list(labels),
            "separator": separator,
            "source": {"files": {"examples": name}},
        }
        config = validated(TaskConfig, fields, f"task '{name}'")
        if not len(examples):
            raise InputError(f"task '{name}': no examples; give at least one of every class")
        if config.label[0] in config.field_names:
            raise InputError(
                f"task '{name}': the template: {{{config.label[0]}}} is what the label itself is called; give the "
                "field another name"
            )
        return cls(config, MemoryRows([as_row(example, config) for example in examples], f"task '{name}'"), chat)

    @classmethod
    def from_data(
        cls,
        data: Any,
        *,
        text: str | None = None,
        label: str | None = None,
        labels: Sequence[str] | None = None,
        template: str | None = None,
        name: str = "data",
        separator: str | None = None,
        chat: bool = False,
    ) -> "Task":
        """A task of a table: a DataFrame (pandas, polars), an Arrow table, or a `Dataset` of datasets.

        Args:
            data: The table. Demonstrations and queries are drawn from it, never the same row.
            text: The column of the texts; if not given, the one with the longest texts. Not with a ``template`` that
                names other columns.
            label: The column of the labels; if not given, ``label`` or what such a column is usually called.
            labels: The label words, in the order of the classes; if not given, the words that are there, or the names
                of a ``ClassLabel``.
            template: How a prompt is made of a row's columns; if not given, ``Sentence: {text} Label:``.
            name: What rows and reports call the task.
            separator: The text between demonstrations; None: the tokenizer's end-of-sequence token.
            chat: Whether demonstrations are turns of a conversation.

        >>> import pandas
        >>> frame = pandas.DataFrame({"id": [7, 8], "review": ["a fine film", "a dull plot"], "label": ["good", "bad"]})
        >>> task = Task.from_data(frame)
        >>> task.labels, task.prompt(task.train[0]) + task.answer(task.train[0].label)
        (('bad', 'good'), 'Sentence: a fine film Label: good')

        Raises:
            InputError: No table, an empty one, or one whose columns cannot be told apart.
        """
        rows = rows_of(data)
        if rows is None:
            raise InputError(
                f"task '{name}': a DataFrame, an Arrow table or a Dataset is needed, found {type(data).__name__}"
            )
        if not rows:
            raise InputError(f"task '{name}': the table is empty; at least one row is needed")
        for column in (text, label):
            if column is not None and column not in rows[0]:
                raise InputError(f"task '{name}': no column '{column}': {suggest(column, map(str, rows[0]))}")
        of_labels = label or label_column(rows)
        words = list(labels) if labels is not None else label_words(data, of_labels) or words_in(rows, of_labels)
        form = TEMPLATE if template is None else template
        fields: dict[str, Any] = {
            "name": name,
            "splits": {"train": "data", "evaluation": "data"},
            "template": form,
            "fields": {"text": text or text_column(rows, of_labels)}
            if template is None or "{text}" in template
            else {},
            "label": of_labels,
            "labels": words,
            "separator": separator,
            "source": {"files": {"data": name}},
        }
        return cls(validated(TaskConfig, fields, f"task '{name}'"), MemoryRows(rows, f"task '{name}'"), chat)

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

    @property
    def is_generated(self) -> bool:
        """Whether its examples are made up here, so that nothing has to be downloaded or read."""
        return self.config.source is not None and self.config.source.generator is not None

    @cached_property
    def demonstrations(self) -> tuple[Example, ...] | None:
        """Those that the task file lists, or None: then they are drawn."""
        return self._listed("demonstrations", self.config.demonstrations)

    @cached_property
    def queries(self) -> tuple[Example, ...] | None:
        """Those that the task file lists, or None: then they are drawn."""
        return self._listed("queries", self.config.queries)

    @cached_property
    def train(self) -> Sequence[Example]:
        """What demonstrations are drawn from; without a source, those that are listed."""
        if self.source is None:
            return self.demonstrations or ()
        return self._examples(self.config.splits.train)

    @cached_property
    def evaluation(self) -> Sequence[Example]:
        """What queries are drawn from; it may be the same split. Without a source, those that are listed."""
        if self.source is None:
            return self.queries or ()
        if self.config.splits.evaluation == self.config.splits.train:
            return self.train
        return self._examples(self.config.splits.evaluation)

    @cached_property
    def digest(self) -> str:
        """A hash of all that a task puts before a model: examples, template, label words, separator."""
        hasher = hashlib.sha256()
        head = [self.template, self.labels, self.separator, *(["chat"] if self.chat else [])]
        splits = (self.train, self.evaluation, self.demonstrations or (), self.queries or ())
        for part in chain([head], *map(_facts, splits)):
            hasher.update(json.dumps(part, sort_keys=True).encode() + b"\n")
        return hasher.hexdigest()

    def examples(self, typed: Sequence[Typed], kind: str) -> tuple[Example, ...]:
        """Examples of this task from what a person wrote (see `from_examples`), numbered under ``kind``."""
        rows = [as_row(one, self.config) for one in typed]
        made = to_examples(rows, self.config, kind, kind)
        return tuple(one if isinstance(one, Example) else new for one, new in zip(typed, made, strict=True))

    def prompt(self, example: Example) -> str:
        """The template with the example's fields in it: all that stands before the answer."""
        return self.template.format_map(example.fields)

    def answer(self, label: int) -> str:
        """A space and the label word."""
        return f" {self.labels[label]}"

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def _examples(self, split: str) -> Sequence[Example]:
        assert self.source is not None
        file, where = self.source.file(split), self.source.where(split)
        if file is not None and is_large(file):
            from dualscope.tasks.large import LargeSplit

            return LargeSplit.of(file, self.config, split, where)
        examples, self._skipped[split] = mapped(self.source.rows(split), self.config, split, where)
        return examples

    @property
    def skipped(self) -> dict[str, int]:
        """How many rows were left out of each split that was read, where ``on_bad_rows: skip`` asks for that."""
        return {split: len(rows) for split, rows in self._skipped.items() if rows}

    def _listed(self, field: str, rows: Sequence[DataRow] | None) -> tuple[Example, ...] | None:
        return None if rows is None else to_examples(rows, self.config, field, f"`{field}` of the task file")


def _facts(split: Sequence[Example]) -> Iterator[Any]:
    """What a hash of examples is made of; a split of gigabytes was hashed while it was read."""
    whole = getattr(split, "digest", None)
    if whole is not None:
        yield whole
        return
    for example in split:
        yield [example.id, dict(example.fields), example.label]


def _task_file(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    meant = [known for known in catalog_names() if known.casefold() == name.strip().casefold()]
    if name not in catalog_names() and len(meant) == 1:
        warnings.warn(f"'{name}': the task is called '{meant[0]}', and was taken as that", stacklevel=3)
        name = meant[0]
    if name not in catalog_names():
        raise InputError(
            f"unknown task '{name}': {suggest(name, catalog_names())} A task of your own is given by "
            f"the path of its .yaml file."
        )
    return catalog_folder() / f"{name}.yaml"


def _one_split_a_file(config: TaskConfig, folder: Path) -> TaskConfig:
    """Two names of one file are one split: ids tell demonstrations from queries, and they begin with the name."""
    files, splits = config.source.files if config.source is not None else None, config.splits
    if files is None or (folder / files[splits.train]).resolve() != (folder / files[splits.evaluation]).resolve():
        return config
    return config.model_copy(update={"splits": Splits(train=splits.train, evaluation=splits.train)})


def _source(config: TaskConfig, folder: Path, data: Path | None, offline: bool) -> RowSource | None:
    if config.source is None:
        return None
    if config.source.files is not None:
        return FileRows(config.source.files, folder)
    if config.source.generator is not None:
        return GeneratedRows(config.source.generator)
    assert config.source.hub is not None  # TaskConfig has seen to it
    if data is not None:
        return DataFolderRows(data, config.name)
    named = config.label_values is not None and all(isinstance(value, str) for value in config.label_values)
    return HubRows(config.source.hub, folder, config.label, named, config.name, offline)
