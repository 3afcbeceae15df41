"""The page on files: every field of study and task files, from the models that check them."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import griffe
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from docs.docstrings import Docstrings
from docs.pages import markdown
from docs.pages.markdown import prose, table

STUDY = """\
preset: quick
models: [embedded, ./my-model]
tasks: [{task: reviews.yaml, seeds: 5, lr: [0.1]}, sst2]
learners: [gd, {learner: lcgd, options: {readout: attention}}, "gd/random-labels"]
shots: [4, 16]"""
TASK = """\
name: reviews
source: {files: {train: train.csv, evaluation: test.csv}}
label: stars
label_values: [poor, fine]
template: "Review: {text} Sentiment:"
labels: [Negative, Positive]"""
PAGE = """\
# Fields of study and task files

Both are YAML. A field that is not listed here is refused, with the nearest name; so is a value of another kind, with
the line of the file. This page is written from the classes that check the files (`python -m docs.generate`), and a
test compares them.

A list of one may be written as its one entry (`shots: 8`), and a list of entries may mix names and entries.

## A study file

```yaml
{study_example}
```

What such a file is for, and how its cells are computed, is on the page on [studies](studies.md). The same fields make
a `Study` [in Python](api/studies.md). One more stands in files alone: `preset`, the name of what the rest is laid over
(`quick` if not said).

{study}

### An entry of `tasks`

{task_entry}

### An entry of `learners`

`lcgd/random-labels` stands for `{{learner: lcgd, control: random-labels}}`. The options of each learner are in the
[reference](reference.md#learners).

{learner_entry}

### An entry of `controls`

{control_entry}

## A task file

```yaml
{task_example}
```

[Add a task](add-task.md) goes through one step by step; [in Python](api/tasks.md) the same is a `Task`.

{task}

### `source`

Exactly one of:

{source}

### `source: {{hub: ...}}`

{hub}

### `source: {{generator: ...}}`

{generator}

### `splits`

{splits}
"""


def page() -> str:
    from dualscope.studies.study import ControlEntry, LearnerEntry, Study, TaskEntry
    from dualscope.tasks.task_config import GeneratorSource, HubSource, SourceConfig, Splits, TaskConfig

    return PAGE.format(
        study_example=STUDY,
        study=fields(Study),
        task_entry=fields(TaskEntry),
        learner_entry=fields(LearnerEntry),
        control_entry=fields(ControlEntry),
        task_example=TASK,
        task=fields(TaskConfig),
        source=fields(SourceConfig),
        hub=fields(HubSource),
        generator=fields(GeneratorSource),
        splits=fields(Splits),
    )


def fields(model: type[BaseModel]) -> str:
    """A line a field: its name, what it takes and its default, what it means."""
    schema = model.model_json_schema()
    said = descriptions(model)
    rows = []
    for name, field in model.model_fields.items():
        takes = accepted(schema["properties"][name])
        missing = "needed" if field.is_required() else default(field.get_default(call_default_factory=True))
        rows.append([f"`{name}`", prose(takes), missing, prose(said[name])])
    return table(["field", "takes", "if not given", "meaning"], rows)


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What the code says of each field, below or beside it."""
    extensions = griffe.load_extensions(Docstrings())
    path, lines = Path(inspect.getfile(model)), griffe.LinesCollection()
    code = path.read_text(encoding="utf-8")
    lines[path] = code.splitlines()
    module = griffe.visit(model.__module__, filepath=path, code=code, extensions=extensions, lines_collection=lines)
    members = module[model.__name__].members
    found = {name: members[name].docstring for name in model.model_fields}
    return {name: said.value.replace("``", "`") if said else "" for name, said in found.items()}


def accepted(schema: dict[str, Any]) -> str:
    """A piece of JSON Schema in words.

    >>> accepted({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]})
    'list of integers'
    """
    if "$ref" in schema:
        return {"TaskEntry": "task", "LearnerEntry": "learner", "ControlEntry": "control"}.get(
            schema["$ref"].rpartition("/")[2], "see below"
        )
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(accepted(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        of = accepted(schema.get("items", {})).replace("integer or number", "number")
        return "list of " + re.sub(r"\b(text|integer|number|mapping|task|learner|control)\b(?!`)", r"\1s", of)
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return "mapping" if not isinstance(values, dict) else f"mapping to {accepted(values)}"
    names = {"string": "text", "boolean": "`true`, `false`"}
    kind = str(schema.get("type", "any"))
    return names.get(kind, kind)


def default(value: Any) -> str:
    plain = to_jsonable_python(value)
    if plain is None or plain == {} or plain == []:
        return "" if plain is None else "none"
    if isinstance(plain, list) and all(isinstance(one, dict) for one in plain):
        plain = [next(iter(one.values())) for one in plain]
    if isinstance(plain, list):
        return ", ".join(markdown.code(one if isinstance(one, str) else json.dumps(one)) for one in plain)
    return markdown.code(plain if isinstance(plain, str) else json.dumps(plain))
