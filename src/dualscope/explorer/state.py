"""What is on the screen: all that the page sends, and all that a saved file or the address bar holds."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.tasks.task import Task
from dualscope.tasks.task_config import TaskConfig

MOST_TEXT = 4_000  # characters of one field
MOST_DEMONSTRATIONS = 64
MOST_QUERIES = 32
MOST_LABELS = 20
MOST_LEARNERS = 24
MOST_BODY = 512 * 1024  # bytes of a request: the largest state, and room for escapes

Text = Annotated[str, Field(max_length=MOST_TEXT)]
Word = Annotated[str, Field(min_length=1, max_length=80)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Typed(_Frozen):
    """A demonstration or a query as it was typed: the template's fields, and the index of its label word."""

    fields: dict[Word, Text] = Field(max_length=8)
    label: int = Field(ge=0, lt=MOST_LABELS)


class View(_Frozen):
    """What is looked at. It changes no number."""

    query: int = Field(default=0, ge=0, lt=MOST_QUERIES)
    layer: int | None = Field(default=None, ge=0, lt=1000)
    head: int | None = Field(default=None, ge=0, lt=1000)


class State(_Frozen):
    """One screen of the explorer.

    >>> state = State.model_validate({
    ...     "model": "embedded", "template": "{text} Label:", "labels": ["no", "yes"],
    ...     "demonstrations": [{"fields": {"text": "fine"}, "label": 1}],
    ...     "queries": [{"fields": {"text": "dull"}, "label": 0}]})
    >>> state.config().demonstrations
    ({'text': 'fine', 'label': 'yes'},)
    """

    version: Literal[1] = 1
    model: Word
    template: Text
    labels: list[Word] = Field(min_length=2, max_length=MOST_LABELS)
    separator: Annotated[str, Field(max_length=80)] | None = None
    demonstrations: list[Typed] = Field(min_length=1, max_length=MOST_DEMONSTRATIONS)
    queries: list[Typed] = Field(min_length=1, max_length=MOST_QUERIES)
    task: Word | None = None
    """The task that other demonstrations are drawn from, where the template's fields and the labels are its own."""
    learners: list[Word] = Field(default=["gd"], max_length=MOST_LEARNERS)
    """Those shown beside zero-shot and in-context."""
    focus: Word = "gd"
    """The learner that is held against its controls and looked at token by token."""
    rate: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    steps: int | None = Field(default=None, ge=1, le=MOST_DEMONSTRATIONS)
    """How many demonstrations gradient learners have taken a step on; None: all."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    view: View = View()

    @field_validator("rate", mode="before")
    @classmethod
    def _whole_rates(cls, rate: Any) -> Any:
        return float(rate) if type(rate) is int else rate  # JavaScript writes 1.0 as 1

    def config(self, base: Task | None = None) -> TaskConfig:
        """The task file that lists what is on the screen; with the source of ``base``, where it fits."""
        base = base if base is not None and self.fits(base) else None
        fields: dict[str, Any] = {"name": "typed" if base is None else f"{base.name}-typed"}
        if base is not None:
            given = base.config.model_dump(mode="json", exclude_none=True)
            kept = ("source", "splits", "fields", "label", "label_values")
            fields |= {key: given[key] for key in kept if given.get(key)}
        fields |= {"template": self.template, "labels": self.labels}
        if self.separator is not None:
            fields["separator"] = self.separator
        fields["demonstrations"] = self._rows(self.demonstrations, "demonstration", base)
        fields["queries"] = self._rows(self.queries, "query", base)
        return validated(TaskConfig, fields, "the task")

    def fits(self, base: Task) -> bool:
        """Whether examples of a task could stand beside those on the screen."""
        return tuple(self.labels) == base.labels and _fields(self.template) == set(base.config.field_names)

    def _rows(self, typed: list[Typed], noun: str, base: Task | None) -> list[dict[str, str | int | bool]]:
        """Each as a row of data whose columns are called as the source's are."""
        names = _fields(self.template)
        if base is None and "label" in names:
            raise InputError("the template: {label} is what the label itself is called; give the field another name")
        columns = {name: name if base is None else base.config.columns(name)[0] for name in names}
        label = "label" if base is None else base.config.label[0]
        values: Sequence[str | int | bool] = self.labels
        if base is not None and base.config.label_values is not None:
            values = base.config.label_values
        rows: list[dict[str, str | int | bool]] = []
        for number, one in enumerate(typed, start=1):
            if one.label >= len(self.labels):
                raise InputError(f"{noun} {number}: there is no label word {one.label + 1}; choose one")
            if empty := [name for name in sorted(names) if not one.fields.get(name, "").strip()]:
                raise InputError(f"{noun} {number}: its {empty[0]} is empty")
            row: dict[str, str | int | bool] = {columns[name]: one.fields[name] for name in sorted(names)}
            rows.append({**row, label: values[one.label]})
        return rows


def _fields(template: str) -> set[str]:
    """The template's fields; none where it cannot be read, which `TaskConfig` then says."""
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name}
    except ValueError:
        return set()
