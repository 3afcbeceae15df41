"""What a task file says: typed, frozen, checked where it is built."""

import unicodedata
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from dualscope.core.options import Strict

MOST_GENERATED = 1_000_000


def _text(value: Any) -> Any:
    """Refuse what YAML did not read as text, and say what to do about it."""
    if value is None or not isinstance(value, str | list | dict):
        kinds = {bool: "boolean", int: "number", float: "number"}
        found = "null" if value is None else f"the {kinds.get(type(value), type(value).__name__)} {value!r}"
        raise ValueError(f"YAML read this as {found}, and a text is needed: quote it")
    return value


Text = Annotated[str, BeforeValidator(_text)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Columns = Annotated[tuple[Text, ...], BeforeValidator(_listed), Field(min_length=1)]


def _entry(value: Any) -> Any:
    """A number may stand as it is; YAML's True and null were meant as words."""
    return value if type(value) in (int, float) else _text(value)


# Examples written into the task file: the template's fields and the label (its word or its index).
Listed = Annotated[tuple[dict[str, Annotated[str | int | float, BeforeValidator(_entry)]], ...], Field(min_length=1)]


class HubSource(Strict):
    """A data set on the hub, or a local folder laid out like one (``dataset: ./folder``)."""

    dataset: Text  # owner/name, or a folder
    config: Text | None = None  # where the data set has several
    revision: Text | None = None  # a branch, tag or commit


class GeneratorSource(Strict):
    """Examples made up by a registered function from a seed."""

    name: Text  # of a registered generator
    seed: int = Field(default=0, ge=0, lt=2**63)  # other examples for another seed
    train: int = Field(ge=1, le=MOST_GENERATED)  # how many to draw demonstrations from
    evaluation: int = Field(ge=1, le=MOST_GENERATED)  # how many to ask


class SourceConfig(Strict):
    """Where the examples come from: exactly one of the three."""

    hub: HubSource | None = None  # a data set on the hub
    files: dict[str, Path] | None = None  # split name -> csv, tsv, jsonl or parquet file
    generator: GeneratorSource | None = None  # examples that a function makes up

    def __str__(self) -> str:
        if self.hub is not None:
            return self.hub.dataset + (f", {self.hub.config}" if self.hub.config else "")
        return f"generator {self.generator.name}" if self.generator is not None else "local files"

    @model_validator(mode="after")
    def _one(self) -> "SourceConfig":
        given = sorted(self.model_fields_set)
        if len(given) != 1:
            raise ValueError(f"exactly one of hub, files, generator is needed, found {given or 'none'}")
        return self


class Splits(Strict):
    """Which split demonstrations are drawn from, and which one queries. They may be the same."""

    train: Text = "train"  # demonstrations
    evaluation: Text = "evaluation"  # queries


_JOINING = "._-\u200c\u200d"  # the last two stand inside words of some scripts


def _name(name: str) -> str:
    """Composed, so that one name is one file whatever keyboard it was typed on."""
    name = unicodedata.normalize("NFC", name)
    if not name[:1].isalnum() or not all(c in _JOINING or unicodedata.category(c)[0] in "LMN" for c in name):
        raise ValueError(
            f"{name!r} is not a name: letters and digits of any script, and . _ - after the first, are accepted"
        )
    return name


Name = Annotated[Text, AfterValidator(_name)]


class TaskConfig(Strict):
    """A task file.

    >>> config = TaskConfig.model_validate({
    ...     "name": "tiny", "source": {"files": {"train": "train.csv", "evaluation": "test.csv"}},
    ...     "template": "Text: {text} Label:", "labels": ["no", "yes"]})
    >>> config.field_names
    ('text',)
    """

    name: Name  # letters and digits of any script
    source: SourceConfig | None = None  # not needed where demonstrations and queries are listed
    demonstrations: Listed | None = None  # used unchanged, in this order, in place of a draw
    queries: Listed | None = None  # asked unchanged, in this order
    splits: Splits = Splits()  # which of the source's splits is which
    fields: dict[str, Columns] = Field(default_factory=dict)
    """By field of the template: the column that holds it, or alternatives."""
    label: Columns = ("label",)  # the column of the label, or alternatives
    label_values: tuple[str | int | bool, ...] | None = None
    """the data's own labels, in the order of `labels`"""
    on_bad_rows: Literal["stop", "skip"] = "stop"  # skip: rows that cannot be used are left out, and counted
    template: Text  # how a prompt is made of an example's fields: "Review: {text} Sentiment:"
    labels: tuple[Text, ...] = Field(min_length=2)  # the label words, in the order of the classes
    separator: Text | None = None  # between demonstrations; the tokenizer's EOS where none is given
    licence: Text | None = None  # of the data
    citation: Text | None = None  # whom to cite
    note: Text | None = None  # what a reader should know

    @property
    def field_names(self) -> tuple[str, ...]:
        """The template's fields, in the order of their first use."""
        return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.template) if name))

    def columns(self, field: str) -> tuple[str, ...]:
        """The columns that may hold ``field``, the preferred one first."""
        return self.fields.get(field, (field,))

    @model_validator(mode="before")
    @classmethod
    def _label_among_fields(cls, data: Any) -> Any:
        """``fields: {label: sentiment}`` means ``label: sentiment``, unless the template has a field of that name."""
        fields = data.get("fields") if isinstance(data, dict) else None
        if not isinstance(fields, dict) or "label" not in fields or "{label}" in str(data.get("template")):
            return data
        column = fields["label"]
        if data.get("label", column) != column:
            raise ValueError(
                f"the label's column is named twice, by `label: {data['label']}` and by `fields: {{label: {column}}}`; "
                "keep one of the lines"
            )
        rest = {name: columns for name, columns in fields.items() if name != "label"}
        return {**data, "fields": rest, "label": column}

    @field_validator("template")
    @classmethod
    def _template(cls, template: str) -> str:
        try:
            parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"{error} in {template!r}; write {{{{ or }}}} for a brace of the text") from None
        names = [(name, form, conversion) for _, name, form, conversion in parts if name is not None]
        if not names:
            raise ValueError(f"names no field, found {template!r}; write for example 'Text: {{text}} Label:'")
        for name, form, conversion in names:
            if not name.isidentifier() or form or conversion:
                raise ValueError(f"'{{{name}}}' is not the plain name of a field; write for example {{text}}")
        if template.endswith(" "):
            raise ValueError(f"{template!r} ends in a space; the answer's own space is added")
        return template

    @field_validator("labels")
    @classmethod
    def _labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        for word in labels:
            if not word.strip():
                raise ValueError("a label word is empty")
            if word != word.strip():
                raise ValueError(f"label word {word!r} has space around it; the answer's own space is added")
            if labels.count(word) > 1:
                raise ValueError(f"label word {word!r} is given twice")
        return labels

    @model_validator(mode="after")
    def _consistent(self) -> "TaskConfig":
        unused = sorted(set(self.fields) - set(self.field_names))
        if unused:
            used = ", ".join(self.field_names)
            raise ValueError(f"fields: '{unused[0]}' is mapped but the template does not use it; it uses {used}")
        values = self.label_values
        if values is not None:
            if len(values) != len(self.labels):
                raise ValueError(f"label_values has {len(values)} entries and labels has {len(self.labels)}")
            if len({str(value) for value in values}) != len(values):
                raise ValueError(f"label_values has an entry twice: {list(values)}")
        if self.source is None and (self.demonstrations is None or self.queries is None):
            raise ValueError(
                "a source to draw examples from is needed (source: hub, files or generator), or both `demonstrations` "
                "and `queries` as lists"
            )
        self._check_splits()
        return self

    def _check_splits(self) -> None:
        # Only the hub knows the splits of its data sets.
        if self.source is None or self.source.hub is not None:
            return
        known = set(self.source.files or ("train", "evaluation"))
        for role in ("train", "evaluation"):
            split = getattr(self.splits, role)
            if split not in known:
                raise ValueError(f"splits.{role}: there is no split '{split}'; known: {', '.join(sorted(known))}")
