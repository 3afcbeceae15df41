"""What is on the screen as files, a command and code: nothing here is a dead end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from dualscope.explorer.deciding_controls import nulls
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.state import State

SEEDS = 5
CONTROLS = ("random-labels", "random-update")
TASK, STUDY = "typed.yaml", "study.yaml"


def share(explorer: Explorer, state: State) -> dict[str, str]:
    taken, all_steps = state.steps, len(state.demonstrations)
    cut = taken is not None and taken < all_steps
    return {
        "task": task_file(explorer, state),
        "study": study_file(explorer, state),
        "command": command(explorer, state),
        "python": python(explorer, state),
        "note": f"The slider is at step {taken} of {all_steps}; these take every step." if cut else "",
    }


def task_file(explorer: Explorer, state: State) -> str:
    """The task that lists these demonstrations and queries; files of its source by their full path."""
    task = explorer.task(state)
    fields = task.config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if task.source is not None and task.config.source is not None and task.config.source.files is not None:
        fields["source"] = {"files": {split: task.source.where(split) for split in task.config.source.files}}
    listed = {name: fields.pop(name) for name in ("demonstrations", "queries")}
    return _yaml({**fields, **listed})


def study_file(explorer: Explorer, state: State) -> str:
    drawable = explorer.task(state).source is not None  # without a source there is no other draw
    fields: dict[str, Any] = {
        "models": [state.model],
        "variants": ["trained", "untrained"],
        "tasks": [TASK],
        "seeds": SEEDS,
        "shots": len(state.demonstrations),
        "queries": len(state.queries),
        "learners": [
            *state.learners,
            # What decides in the report is what the page's band is made of.
            *({"learner": name, "variants": ["trained"]} for name in nulls() if name not in state.learners),
            *([{"learner": "in-context", "control": "redraw", "variants": ["trained"]}] if drawable else []),
        ],
        "controls": [{"control": c, "reference": "in-context", "variants": ["trained"]} for c in CONTROLS],
        "lr": [state.rate],
        "dtype": "auto",  # as the page computes
        "per_head": True,
    }
    if explorer.offer.plugins:
        fields["plugins"] = [str(Path(file).resolve()) for file in explorer.offer.plugins]
    return _yaml(fields)


def command(explorer: Explorer, state: State) -> str:
    words = ["dualscope", "run", STUDY]
    if explorer.offer.data is not None and explorer.task(state).source is not None:
        words += ["--data", str(explorer.offer.data.resolve())]
    if explorer.offer.offline:
        words.append("--offline")
    return shlex.join([*words, "--out", "runs/typed"])


def python(explorer: Explorer, state: State) -> str:
    """The same as code that runs."""
    drawable = explorer.task(state).source is not None
    lines = [
        "from dualscope import Episode, Task, compare",
        "",
        *(_from_its_task(explorer, state) if drawable else _by_themselves(state)),
        f"result = compare({state.model!r}, episode, {state.learners!r}, lr={state.rate!r})",
        'print(result.table("accuracy", "sim_aou").to_pandas())',
        'print(result.layers("sim_aou"))',
        "for name, trace in result.traces.items():",
        "    print(name, trace.label_logprobs.softmax(-1).tolist())",
    ]
    return "\n".join(lines) + "\n"


def _by_themselves(state: State) -> list[str]:
    def listed(name: str, entries: list[Any]) -> list[str]:
        rows = [{**one.fields, "label": state.labels[one.label]} for one in entries]
        return [f"{name} = [", *(f"    {row!r}," for row in rows), "]"]

    separator = "" if state.separator is None else f", separator={state.separator!r}"
    seed = f", seed={state.seed}" if state.seed else ""
    return [
        *listed("demonstrations", state.demonstrations),
        *listed("queries", state.queries),
        f"template = {state.template!r}",
        f"task = Task.from_examples(demonstrations, labels={state.labels!r}, template=template{separator})",
        f"episode = Episode.of(task.train, queries, task=task{seed})",
    ]


def _from_its_task(explorer: Explorer, state: State) -> list[str]:
    """Through the task file: some learners choose their settings on examples of the task that are not on the screen."""
    offer = explorer.offer
    data = f", data={str(offer.data.resolve())!r}" if offer.data is not None else ""
    offline = ", offline=True" if offer.offline else ""
    text = task_file(explorer, state)
    plain = '"""' not in text and "\\" not in text
    return [
        f'task_file = """\\\n{text}"""' if plain else f"task_file = {text!r}",
        f'with open("{TASK}", "w", encoding="utf-8") as file:',
        "    file.write(task_file)",
        f'task = Task.load("{TASK}"{data}{offline})',
        f"episode = Episode.draw(task, shots={len(state.demonstrations)}, queries={len(state.queries)}, "
        f"seed={state.seed})",
    ]


def _yaml(fields: dict[str, Any]) -> str:
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110)
