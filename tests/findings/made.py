"""Evidence made for a purpose: levels with noise by seed and by query, and the cells of a small study."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dualscope.core.rows import QueryColumn
from dualscope.core.spec import CellSpec, EpisodeSpec, LearnerSpec
from dualscope.core.words import CONTROL_ROLES
from dualscope.findings.evidence import Evidence, EvidenceKey

NULL = LearnerSpec("null-context")
QUERIES = [f"validation:{i}" for i in range(60)]


def who(name: str, **options: object) -> LearnerSpec:
    """A learner, or a learner under a control as it is written."""
    name, _, control = name.partition("/")
    return LearnerSpec.of(name, options, control or None)  # type: ignore[arg-type]


def setting(model: str, shots: int, **more: object) -> EpisodeSpec:
    return EpisodeSpec.of_row({"model": model, "shots": shots, **more}).setting


def collected(cells: Iterable[tuple[dict[str, Any], pa.Table]]) -> dict[EpisodeSpec, Evidence]:
    """The evidence of cells that are told by their columns."""
    return Evidence.collect([(CellSpec.of_row(columns), table) for columns, table in cells])


def key(task: str, variant: str, learner: str | LearnerSpec, metric: str) -> EvidenceKey:
    return EvidenceKey(task, variant, who(learner) if isinstance(learner, str) else learner, metric)


def put(
    made: Evidence,
    task: str,
    variant: str,
    seed: int,
    learner: str | LearnerSpec,
    metric: str,
    queries: list[str],
    values: object,
    reference: LearnerSpec | None = None,
) -> None:
    """Values of a learner, which is under test if it is under no control and neither baseline nor reference."""
    where = key(task, variant, learner, metric)._replace(reference=reference)
    made.add(where, seed, queries, values)  # type: ignore[arg-type]
    known = {"zero-shot": "baseline", "in-context": "reference"}
    control = where.learning.control
    role = known.get(where.learning.name, "hypothesis") if control is None else CONTROL_ROLES[control]
    made.roles[where.learning] = role  # type: ignore[assignment]


def evidence(
    seeds: int = 6,
    tasks: tuple[str, ...] = ("sst2",),
    gd: float = 0.3,
    untrained: float | None = 0.05,
    random_update: float | None = 0.02,
    mismatched: float | None = 0.1,
    null: float | None = 0.1,
    gains: Mapping[str, float] = {"in-context": 0.3, "gd": 0.2},
    spread: float = 0.05,
) -> Evidence:
    """A study in which every similarity is a level with noise by seed and by query."""
    made = Evidence(chance=dict.fromkeys(tasks, 0.5))
    rng = np.random.default_rng(0)
    for task in tasks:
        for seed in range(seeds):

            def add(
                learner: str,
                metric: str,
                level: float | None,
                variant: str = "trained",
                reference: LearnerSpec | None = None,
            ) -> None:
                if level is not None:
                    noise = spread * (rng.standard_normal() / 3 + rng.standard_normal(len(QUERIES)))
                    put(made, task, variant, seed, learner, metric, QUERIES, level + noise, reference)  # noqa: B023

            add("gd", "sim_aou", gd)
            add("gd", "sim_aou", untrained, "untrained")
            add("gd/random-update", "sim_aou", random_update)
            add("gd", "sim_aou_mismatched", mismatched)
            add("gd", "sim_aou_to_null", null, reference=NULL)
            chance = rng.random(len(QUERIES))
            for learner in ("zero-shot", "in-context", "gd"):
                right = chance < 0.5 + gains.get(learner, 0.0)
                put(made, task, "trained", seed, learner, "correct", QUERIES, right.astype(float))
    return made


def table(levels: Mapping[str | QueryColumn, float], right: float) -> pa.Table:
    n = len(QUERIES)
    labels = np.zeros(n, int)
    prediction = (np.arange(n) >= right * n).astype(int)
    columns = {"query": QUERIES, "label": labels, "prediction": prediction, "label_logprobs": [[0.0, 1.0]] * n}
    found = pa.table(columns)
    for column, level in levels.items():
        described = column if isinstance(column, QueryColumn) else QueryColumn(column)
        found = found.append_column(described.field(pa.float64()), pa.array(np.full(n, level)))
    return found


def cells() -> list[tuple[dict[str, Any], pa.Table]]:
    found: list[tuple[dict[str, Any], pa.Table]] = []
    for seed in range(6):
        for variant in ("trained", "untrained"):
            base: dict[str, Any] = {
                "model": "tiny",
                "variant": variant,
                "task": "sst2",
                "seed": seed,
                "demo_labels": "gold",
            }
            base |= {"corrupt": "both", "lr": None, "options": "{}", "control": None, "role": "hypothesis"}
            high = 0.3 if variant == "trained" else 0.1
            gd: dict[str | QueryColumn, float] = {"sim_aou": high, "sim_aou_mismatched": 0.1, "sim_am": 2.0}
            gd |= {QueryColumn("sim_aou_to_null", NULL): 0.1, QueryColumn("sim_aou", layers=True): 1.0}
            found += [
                (base | {"learner": "zero-shot", "role": "baseline", "shots": 0}, table({}, 0.5)),
                (base | {"learner": "in-context", "role": "reference", "shots": 16}, table({}, 0.9)),
                (base | {"learner": "gd", "shots": 16, "lr": 0.3}, table(gd, 0.8)),
                (
                    base | {"learner": "lcgd", "shots": 16, "lr": 0.3, "options": '{"readout":"attention"}'},
                    table(gd, 0.8),
                ),
                (base | {"learner": "lcgd", "shots": 4, "lr": 0.3}, table(gd, 0.8)),
                (base | {"learner": "lcgd", "shots": 4, "lr": 0.1}, table(gd, 0.8)),
            ]
    return found
