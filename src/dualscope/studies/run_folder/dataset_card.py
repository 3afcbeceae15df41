"""The card of a packed run: a README.md beside the parts, with the head by which data set viewers find them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dualscope._version import __version__
from dualscope.core.config_file import parsed_yaml
from dualscope.core.untrusted_files import reading
from dualscope.studies.run_folder.storage import RunFolder

FILE = "packed/README.md"
CARD = """\
---
{head}---

# A run of dualscope

Is in-context learning gradient descent? These are {cells} of one study, packed by dualscope {version}. A cell is one
model, task, draw of demonstrations and learner. `rows/` has every number, `queries/` what each query gave; both are
partitioned by model and task, and `index/` says which part holds which cell.

## What was measured

| field of the study | value |
|---|---|
{study}

## Columns

| columns | meaning |
|---|---|
| `cell` | an id: a hash of all that determines the cell's numbers |
| `model`, `variant`, `init_seed`, `dtype` | which model; trained, or with weights drawn anew; the precision |
| `task`, `seed`, `order`, `shots`, `shots_used`, `demo_labels` | which demonstrations, and their labels |
| `corrupt`, `balanced`, `gd_demonstrations`, `gd_order` | what differs between the prompt and descent |
| `queries_from`, `subset`, `read_at`, `chat` | which queries, where they were read, and whether as a conversation |
| `learner`, `control`, `role`, `family`, `lr`, `options` | who learned; `gd/random-labels` is `gd` under a control |
| `intervention`, `level` | what was changed in the demonstrations from draw to draw; empty: nothing |
| `metric`, `reference`, `layer`, `head`, `step` | which number; `layer` is empty for the mean over layers |
| `value`, `low`, `high`, `n` | the number, its interval over queries where it has one, and of how many it is the mean |

## How to read it

```python
from dualscope import Run

run = Run.open("..")  # the folder that holds packed/
run.table(metric="sim_aou", layer=None).to_pandas()
```

Without dualscope: `duckdb.sql("select * from 'rows/*/*/*.parquet'")`. Group by `learner` and `variant`, keep one
`layer`, and do not average over `intervention`.

## What it does not say

An answer about these models is none about others. Seeds draw demonstrations; the queries are the same in all of them.
The texts belong to the data sets named above, and their licences hold.
"""
REPEATED = ("models", "variants", "tasks", "shots", "demo_labels", "seeds", "queries", "learners", "interventions")
"""Fields of the study that the card repeats."""


def write_card(run: RunFolder) -> str:
    """Describe the packed run of this folder; returns the card's place in it."""
    study: Mapping[str, Any] = {}
    if run.folder.exists("study.yaml"):
        with reading(f"{run.folder}/study.yaml"):
            study, _ = parsed_yaml(run.folder.read("study.yaml").decode(), f"{run.folder}/study.yaml")
    text = card_of(study, len(run.stored()))
    run.folder.write(FILE, text.encode("utf-8"))
    return FILE


def card_of(study: Mapping[str, Any], cells: int) -> str:
    """The whole text.

    >>> [line for line in card_of({"tasks": ["sst2"], "seeds": 5}, 40).splitlines() if "`seeds`" in line]
    ['| `seeds` | `5` |']
    """
    parts = {kind: f"{kind}/*/*/*.parquet" for kind in ("rows", "queries")}
    configs = [{"config_name": kind, "data_files": files} for kind, files in parts.items()]
    head = {"pretty_name": "A run of dualscope", "tags": ["dualscope", "in-context-learning"], "configs": configs}
    lines = [f"| `{name}` | {_listed(study[name])} |" for name in REPEATED if study.get(name) not in (None, [])]
    return CARD.format(
        head=yaml.safe_dump(head, sort_keys=False),
        cells=f"{cells:,} cell{'' if cells == 1 else 's'}",
        version=__version__,
        study="\n".join(lines),
    )


def _listed(value: Any) -> str:
    """A field in one cell of a table, as code; signs that would end the code or the cell are replaced.

    >>> _listed([{"learner": "lcgd", "control": None, "options": {"depth": 2}}, "/home/me/a|b"])
    '`lcgd {"depth": 2}`, `a∣b`'
    """
    texts = (_named(part) for part in (value if isinstance(value, list) else [value]))
    return ", ".join(f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '∣')}`" for text in texts)


def _named(part: Any) -> str:
    """What a reader knows it by; of a file on this machine its name alone."""
    if isinstance(part, dict):
        name = next((part[key] for key in ("task", "learner", "kind") if part.get(key)), "")
        control = f"/{part['control']}" if part.get("control") else ""
        return f"{_named(name)}{control} {json.dumps(part['options']) if part.get('options') else ''}".strip()
    text = str(part)
    return Path(text).name if text.startswith(("/", "./", "../", "~")) else text
