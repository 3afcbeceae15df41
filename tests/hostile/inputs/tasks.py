"""Task files: every field with values that it cannot have."""

import json
from typing import Any

from tests.hostile.inputs.bad import Bad, Place

GOOD: dict[str, Any] = {
    "name": "mine",
    "source": {"files": {"train": "train.jsonl", "test": "test.jsonl"}},
    "splits": {"train": "train", "evaluation": "test"},
    "template": "Text: {text} Label:",
    "labels": ["bad", "good"],
}
GENERATOR = {"name": "sentiment", "train": 10, "evaluation": 10}
FIELDS: dict[str, list[Any]] = {
    "name": ["", " ", "../x", "a/b", 3, True, None, [], "\0", "a b", ".hidden", "-x"],
    "template": [
        "",
        "no field",
        "{",
        "}",
        "{text",
        "{0}",
        "{}",
        "{text.a}",
        "{text!r}",
        "{text:>9}",
        "ends {text} ",
        3,
        True,
        None,
        [],
        "{te xt}",
        "{text[0]}",
        "\x00{text}",
        "{none_such}",
    ],
    "labels": [
        [],
        ["one"],
        ["a", "a"],
        ["a", ""],
        ["a", " b"],
        [1, 2],
        [True, False],
        "ab",
        {"a": 1},
        None,
        ["a", None],
        ["a", "\x00"],
        ["a", ["b"]],
    ],
    "label_values": [[], [1], [1, 1], ["a", "b", "c"], "ab", {"a": 1}, [None, 1], [[1], [2]]],
    "label": [[], 3, True, {}, [3], "none-such", ["none-such"], [[]]],
    "fields": [[], "x", {"other": "text"}, {"text": []}, {"text": 3}, {"text": "none-such"}, {"text": {}}],
    "separator": [3, True, [], {}, "\0"],
    "splits": [
        [],
        "train",
        {"train": "none-such"},
        {"evaluation": "none-such"},
        {"test": "x"},
        {"train": 3},
        {"train": ""},
    ],
    "source": [
        [],
        "x",
        {},
        {"hub": {}},
        {"files": {}},
        {"files": {"train": 3}},
        {"generator": {}},
        {"ftp": "x"},
        None,
        {"files": {"train": "none.jsonl", "test": "test.jsonl"}},
        {"files": {"train": "train.txt", "test": "test.jsonl"}},
        {"hub": {"dataset": "x"}, "files": {"train": "x"}},
        {"hub": {"dataset": 3}},
        {"hub": {"dataset": "./none"}},
        {"files": {"train": ".", "test": "test.jsonl"}},
        {"files": {"train": "", "test": "test.jsonl"}},
        {"generator": {**GENERATOR, "train": 0}},
        {"generator": {**GENERATOR, "train": 10**12}},
        {"generator": {**GENERATOR, "seed": -1}},
        {"generator": {**GENERATOR, "train": True}},
        {"generator": {**GENERATOR, "name": "none-such"}},
        {"files": {"train": "tra\x00in.jsonl", "test": "test.jsonl"}},
    ],
    "licence": [3, True, []],
    "unknown": [1, None, []],
}


def _task(field: str, value: Any) -> Bad:
    def make(place: Place) -> None:
        place.task()
        place.write("bad.yaml", json.dumps({**GOOD, field: value}))

    said = r"bad\.yaml|task 'mine'|generator|none\.jsonl|files are not read|hub"
    return Bad(f"task {field}: {json.dumps(value)[:50]}", ("validate", "{here}/bad.yaml"), said, make)


def _missing(field: str) -> Bad:
    def make(place: Place) -> None:
        place.task()
        place.write("bad.yaml", json.dumps({key: value for key, value in GOOD.items() if key != field}))

    return Bad(f"task without {field}", ("validate", "{here}/bad.yaml"), rf"bad\.yaml.*({field}|source)", make)


TABLE = [_task(field, value) for field, values in FIELDS.items() for value in values]
TABLE += [_missing(field) for field in ("name", "source", "template", "labels")]
