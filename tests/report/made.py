"""Run folders built by hand: the values are chosen, so a test knows what the report has to say."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.rows import COLUMNS, QueryColumn
from dualscope.core.spec import IN_CONTEXT, EpisodeSpec, LearnerSpec, under_control
from dualscope.core.words import CONTROL_ROLES
from dualscope.studies.run_folder.storage import RunFolder

WHOLE = 0.5  # nats from ICL that zero-shot leaves
LAYERED = ("sim_aou", "sim_aou_norm", "sim_aou_centered", "sim_am", "sim_am_delta")
Level = Callable[[str, str], float]
"""(variant, learner) -> the level of its similarities."""


def usual(variant: str, learner: str) -> float:
    return {"trained": 0.4, "untrained": 0.1, "trained-embeddings": 0.2}[variant] * (
        1.0 if learner == "gd" else 0.8 if learner == "lcgd" else 0.1
    )


def make_run(
    folder: Path,
    tasks: Sequence[str] = ("sst2", "subj"),
    variants: Sequence[str] = ("trained", "untrained"),
    learners: Sequence[str] = ("gd", "lcgd", "gd/random-update"),
    seeds: int = 5,
    layers: int = 3,
    queries: int = 30,
    level: Level = usual,
    model: str = "tiny",
    labels: Sequence[str] = ("Negative", "Positive"),
    shots: int = 4,
    demo_labels: Sequence[str] = ("gold",),
    rates: Sequence[float] = (0.1,),
    orders: Sequence[int] = (0,),
    noise: float = 0.05,
    settings: Mapping[str, Any] = {},
    explained: Mapping[LearnerSpec, float] = {},
    ceilings: Sequence[str] = ("kv-distilled", "context-patch"),
    parameters: int | None = None,
    notes: Mapping[str, str] = {},
    texts: bool = False,
    first: int = 0,
) -> Path:
    """A run whose learners all learn; `level` says how like in-context learning each is.

    Learners of ``explained`` have no attention outputs, only that share of ICL's change of the predictions. ``first``
    tells the cells of one call from another's, where several make one run.
    """
    run = RunFolder.create(folder)
    rng = np.random.default_rng(0)
    number = 0

    def store(columns: dict[str, Any], rows: list[dict[str, Any]], table: dict[str, Any]) -> None:
        nonlocal number
        empty = dict.fromkeys(COLUMNS) | {"options": "{}"} | EpisodeSpec.of_row({"model": model}).columns
        number += 1
        cell = f"{first:02x}{number:018x}"
        name, _, control = columns["learner"].partition("/")
        known = {"zero-shot": "baseline", "in-context": "reference"}
        known |= {"null-context": "null", "zero-shot-offset": "null"}
        control = columns.get("control") or control or None
        role = CONTROL_ROLES[control] if control else known.get(name, "hypothesis")
        if name in ceilings:
            role = "ceiling"
        own = {"learner": under_control(name, control), "control": control, "role": role}
        said = dict(notes) | ({} if parameters is None else {"parameters": str(parameters)})
        run.store(cell, [{**empty, **columns, **own, **row} for row in rows], _queries(table), notes=said)

    gold = rng.integers(0, len(labels), queries)
    names = [f"evaluation:{i}" for i in range(queries)]
    if texts:
        write_texts(run, tasks, labels, names)
    for task in tasks:
        for variant in variants:
            for seed in range(seeds):
                base = {"task": task, "variant": variant, "seed": seed}
                wrong = (gold + (rng.random(queries) < 0.8)) % len(labels)
                table = {"query": names, "label": gold, "prediction": wrong}
                zero = {**base, "learner": "zero-shot", "shots": 0, "shots_used": 0, "demo_labels": "gold"}
                store(zero, [_row("accuracy", float((wrong == gold).mean()))], table)
                for order, shown in [(o, d) for o in orders for d in demo_labels]:
                    here = {**base, "order": order, "shots": shots, "shots_used": shots, "demo_labels": shown}
                    here |= settings
                    right = {**table, "prediction": gold}
                    gain = 1.0 - float((wrong == gold).mean())
                    rows = [_row("accuracy", 1.0), _row("icl_learned", gain, "zero-shot")]
                    rows += [_row("predicted_share", float((gold == i).mean()), w) for i, w in enumerate(labels)]
                    store({**here, "learner": "in-context"}, rows, right)
                    for one, share in explained.items() if variant == "trained" else ():
                        left = WHOLE * (1 - share - noise * rng.standard_normal(queries))
                        whole = np.full(queries, WHOLE if np.isfinite(share) else np.nan)
                        rows = [_row("accuracy", 1.0), _row("agreement", 1.0, IN_CONTEXT.label)]
                        rows += [_row("explained", float(1 - left.mean() / WHOLE), IN_CONTEXT.label)]
                        own = {**here, "learner": one.name, "control": one.control, "options": one.options}
                        own["lr"] = one.lr
                        # The wrong thing taught teaches nothing here.
                        known = table if one.control and CONTROL_ROLES[one.control] == "null" else right
                        store(own, rows, {**known, "kl_icl": left, "kl_icl_zero_shot": whole})
                    for learner in learners:
                        for rate in rates:
                            values = np.clip(level(variant, learner) + noise * rng.standard_normal(queries), -1, 1)
                            own = {**here, "learner": learner, "lr": rate}
                            mismatched = values * 0.2
                            table_of = {**right, "sim_aou": values, "sim_aou_mismatched": mismatched}
                            store(own, _learner_rows(values, mismatched, gain, layers, shots), table_of)
    return folder


def write_texts(run: RunFolder, tasks: Sequence[str], labels: Sequence[str], names: Sequence[str]) -> None:
    """As a run keeps them."""
    for number, task in enumerate(tasks):
        about = json.dumps({"task": task, "labels": list(labels)})
        table = pa.table({"query": names, "text": [f"{task} asks {name}" for name in names]})
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({"about": about}), sink)
        run.folder.write(f"texts/{number}.parquet", bytes(sink.getvalue()))


def _queries(columns: dict[str, Any]) -> pa.Table:
    """A table of queries whose metrics' columns say what they are."""
    plain = pa.table(columns)
    fields = [
        field if field.name in ("query", "label", "prediction") else QueryColumn(field.name).field(field.type)
        for field in plain.schema
    ]
    return pa.table(plain.columns, schema=pa.schema(fields))


def _row(metric: str, value: float, reference: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"metric": metric, "value": value, "low": value - 0.05, "high": value + 0.05, "n": 30} | {
        "reference": reference,
        **rest,
    }


def _learner_rows(
    values: np.ndarray, mismatched: np.ndarray, gain: float, layers: int, steps: int
) -> list[dict[str, Any]]:
    mean = float(values.mean())
    rows = [_row("accuracy", 1.0), _row("gd_learned", gain, "zero-shot"), _row("jaccard", 0.5, "in-context")]
    rows += [_row(metric, mean, "in-context") for metric in LAYERED]
    rows += [_row("sim_aou_mismatched", float(mismatched.mean()), "in-context")]
    for layer in range(layers):
        rows += [_row(metric, mean, "in-context", layer=layer) for metric in LAYERED]
        rows += [_row("snr", 100.0, "zero-shot", layer=layer)]
        rows += [_row("grad_norm", 0.1 * (step + 1), layer=layer, step=step) for step in range(steps)]
    return rows
