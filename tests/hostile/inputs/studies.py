"""Study files: every field with values that it cannot have."""

import json
from typing import Any

from tests.hostile.inputs.bad import SMALL, Bad, Place

HUGE = 10**30
NAMES: list[Any] = [[], "", [""], [3], [True], [["x"]], "a\0b", ["\ud800"], 3.5, {"a": 1}, ["x", "x"]]
WHOLE: list[Any] = [-1, True, [True], "many", [1.5], {"a": 1}, HUGE, [HUGE], [], [[1]], [1, 1], float("nan"), [None]]
CHOICE: list[Any] = ["none-such", True, 7, [], {}, ["none-such"], "\0", [["gold"]]]
RATES: list[Any] = [0, -1, True, "fast", [], [0.1, -1], [True], "nan", "inf", {"a": 1}, [[0.1]], "0.1,x", float("nan")]
SWITCH: list[Any] = ["perhaps", 7, [], {}, [True], "\0"]

FIELDS: dict[str, list[Any]] = {
    "models": [value for value in NAMES if value != {"a": 1}],
    "tasks": [
        [],
        "",
        [3],
        [True],
        [{"seeds": 3}],
        [{"task": ""}],
        [{"task": "sst2", "seeds": 0}],
        3,
        ["\x00"],
        [{"task": "sst2", "lr": -1}],
        [{"task": "sst2", "shot": 3}],
        ["sst2", "sst2"],
        [{"task": 3}],
        None,
    ],
    "learners": [
        [],
        "",
        [3],
        [{"options": {}}],
        [{"learner": "gd", "lr": 0}],
        [{"learner": "gd", "options": 3}],
        [{"learner": "gd", "variants": ["x"]}],
        ["gd", "gd"],
        [{"learner": ""}],
        ["gdd"],
        ["gd\x00"],
        [{"learner": "gd", "options": {"epochs": True}}],
        [{"learner": "gd", "options": {"none": 1}}],
        [{"learner": "gd", "options": {"epochs": -1}}],
        [{"learner": "gd", "options": {"epochs": "x"}}],
        [{"learner": "gd", "reference": "none-such"}],
    ],
    "seeds": [0, -1, True, "x", [-1], [], {"a": 1}, 300_001, HUGE, [1, 1], [1.5], "1,x", [True], None],
    "init_seeds": [0, -1, True, "x", [-1], {"a": 1}, HUGE, [1, 1], [[1]]],
    "orders": WHOLE,
    "shots": [*WHOLE, 0, [0, 4]],
    "variants": CHOICE,
    "demo_labels": CHOICE,
    "lr": RATES,
    "corrupt": list(CHOICE),
    "read_at": list(CHOICE),
    "gd_demonstrations": CHOICE,
    "subset": CHOICE,
    "dtype": CHOICE,
    "queries": [0, -1, True, "many", [], {}, HUGE, 1.5, None, [3]],
    "balanced": SWITCH,
    "per_head": SWITCH,
    "per_query": SWITCH,
    "save_traces": SWITCH,
    "metrics": [[], "", ["none-such"], [3], [True], {"a": 1}, ["\0"], [""]],
    "data": ["", 3, [], {}, "\0", "\ud800", True],
    "plugins": [[""], [3], "\0", ["none-such.py"], {"a": 1}, True],
    "preset": ["none-such", 3, [], True, "../quick"],
}
UNKNOWN = ["shot", "model", "SEEDS", "learner", "", "__class__", "lr ", "None", "0", "seeds\0"]


def _study(field: str, value: Any) -> Bad:
    def make(place: Place) -> None:
        place.task()
        place.model()
        content = {"models": ["model"], "tasks": ["mine.yaml"], field: value}
        place.write("study.yaml", json.dumps(content))  # JSON is YAML

    shown = json.dumps(value)[:70]
    arguments = (
        "run",
        "{here}/study.yaml",
        *(SMALL if field not in ("seeds", "shots", "queries", "learners", "tasks") else ()),
    )
    said = rf"({field.rstrip('s')}|{'dualscope' if field == 'models' else field})"
    return Bad(f"study {field}: {shown}", (*arguments, "--dry-run", "--out", "{here}/run"), said, make)


def _unknown(name: str) -> Bad:
    def make(place: Place) -> None:
        place.write("study.yaml", json.dumps({"tasks": ["sst2"], name: 1}))

    said = r"unknown field|has a NUL|half a character"
    return Bad(f"study unknown {name!r}", ("run", "{here}/study.yaml", "--dry-run"), said, make)


TABLE = [_study(field, value) for field, values in FIELDS.items() for value in values]
TABLE += [_unknown(name) for name in UNKNOWN]
