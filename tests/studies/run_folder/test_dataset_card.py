"""The card of a packed run: its head finds the parts, and no study's text breaks its tables."""

import re

import yaml

from dualscope.core.rows import COLUMNS as OF_ROWS
from dualscope.studies.run_folder.dataset_card import card_of


def test_the_head_names_the_parts() -> None:
    _, head, _ = card_of({"tasks": ["sst2"]}, 3).split("---\n", 2)
    configs = {one["config_name"]: one["data_files"] for one in yaml.safe_load(head)["configs"]}
    assert configs == {"rows": "rows/*/*/*.parquet", "queries": "queries/*/*/*.parquet"}


def test_it_explains_every_column_of_rows() -> None:
    table = card_of({}, 3).partition("## Columns")[2].partition("## How")[0]
    said = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1] if line else "")}
    assert said == {"cell", *OF_ROWS}


def test_a_studys_text_stays_in_its_cell() -> None:
    study = {"models": ["a|b\n| `x` | y |", "<script>"], "learners": [{"learner": "gd", "options": {"epochs": 2}}]}
    lines = [line for line in card_of(study, 3).splitlines() if line.startswith(("| `models`", "| `learners`"))]
    assert [line.count("|") for line in lines] == [3, 3]
    assert '`gd {"epochs": 2}`' in lines[1]


def test_folders_of_the_machine_stay_at_home() -> None:
    study = {"models": ["/home/me/models/tiny"], "tasks": [{"task": "/home/me/reviews.yaml", "seeds": None}]}
    card = card_of(study, 3)
    assert "/home/me" not in card
    assert "| `models` | `tiny` |" in card
    assert "| `tasks` | `reviews.yaml` |" in card
