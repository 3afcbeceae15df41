"""compare(): the same numbers as a study's, for people in notebooks; and the summary of a run."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import METRICS, Model, Task, compare, run_study
from dualscope.core.errors import InputError
from dualscope.findings.summary import ALL_TASKS, recalled, summarise
from dualscope.findings.verdict import stored_cells


def test_compare_agrees_with_a_study(fields: dict[str, Any], tmp_path: Path) -> None:
    model, task = Model.load(fields["models"][0], device="cpu", dtype="auto"), Task.load(fields["tasks"][0])
    found = compare(model, task, ["gd"], shots=4, seed=1, lr=0.1, queries=12)
    assert list(found.traces) == ["zero-shot", "in-context", "gd"]
    rows = run_study(fields, tmp_path, device="cpu").run.table(seed=1, learner="gd", metric="sim_aou").to_pylist()
    (aggregate,) = [row["value"] for row in rows if row["layer"] is None]
    assert found.table("sim_aou")["value"].to_pylist() == [aggregate]
    layers = [row["value"] for row in rows if row["layer"] is not None]
    np.testing.assert_array_equal(found.layers("sim_aou")["gd"], layers)
    assert "accuracy" in str(found)


def test_compare_chooses_a_rate_and_takes_options(fields: dict[str, Any]) -> None:
    options = {"learner": "lcgd", "readout": "attention"}
    found = compare(fields["models"][0], fields["tasks"][0], [options], shots=4, queries=12)
    assert found.lr is not None
    assert "lcgd[readout=attention]" in found.traces


def test_compare_sets_learners_beside_every_null(fields: dict[str, Any]) -> None:
    scrambled = {"learner": "null-context", "kind": "scrambled"}
    learners: list[str | dict[str, Any]] = ["gd", "zero-shot-offset", scrambled]
    found = compare(fields["models"][0], fields["tasks"][0], learners, shots=4, lr=0.1, queries=6)
    against = found.table("sim_aou_to_null")["reference"].to_pylist()
    assert sorted(against) == ["null-context[kind=scrambled]", "zero-shot-offset"]


def test_compare_refuses_what_it_does_not_know(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="option 'read'"):
        compare(fields["models"][0], fields["tasks"][0], [{"learner": "lcgd", "read": 1}], shots=4, lr=0.1)
    found = compare(fields["models"][0], fields["tasks"][0], ["gd"], shots=4, lr=0.1, queries=12)
    with pytest.raises(InputError, match="did you mean sim_aou"):
        found.table("sim_ao")


def test_compare_takes_a_path_and_one_learner(fields: dict[str, Any]) -> None:
    found = compare(Path(fields["models"][0]), Path(fields["tasks"][0]), "gd", shots=4, lr=1, queries=6)
    assert list(found.traces) == ["zero-shot", "in-context", "gd"]
    options = {"learner": "lcgd", "readout": "attention"}
    found = compare(fields["models"][0], fields["tasks"][0], options, shots=4, lr=np.float32(0.1), queries=6)
    assert "lcgd[readout=attention]" in found.traces


@pytest.mark.parametrize("lr", ["0.1", "auto", [0.1], True, 0, -1, math.nan, math.inf])
def test_compare_refuses_what_is_no_rate(lr: object) -> None:
    with pytest.raises(InputError, match="lr must be one number above 0"):
        compare("nowhere", "nothing", lr=lr)  # type: ignore[arg-type]


def test_the_summary_is_the_mean_over_seeds(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path
) -> None:
    result = run_study(fields | {"tasks": list(task_files)}, tmp_path, device="cpu")
    rows = summarise(result.run, stored_cells(result.run, result.cells))
    (one,) = [r for r in rows if (r["task"], r["learner"], r["metric"]) == ("moods", "gd", "sim_aou")]
    stored = result.run.table(task="moods", learner="gd", metric="sim_aou", layer=None)["value"].to_pylist()
    assert one["value"] == pytest.approx(np.mean(stored))
    assert one["low"] < one["value"] < one["high"]
    assert (one["seeds"], one["queries"]) == (2, 12)
    both = [r["value"] for r in rows if (r["learner"], r["metric"]) == ("gd", "sim_aou") and r["task"] != ALL_TASKS]
    (mean,) = [r for r in rows if (r["task"], r["learner"], r["metric"]) == (ALL_TASKS, "gd", "sim_aou")]
    assert mean["value"] == pytest.approx(np.mean(both))
    again = recalled(result.run, [cell.id for cell in result.cells])
    assert again is not None
    assert [{k: _same(v) for k, v in r.items()} for r in again] == [{k: _same(v) for k, v in r.items()} for r in rows]


def _same(value: object) -> object:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def test_own_demonstrations_and_results_that_show_themselves() -> None:
    shown = [("a fine film", "Positive"), ("a dull plot", "Negative"), ("superb", "Positive")]
    model = Model.load("embedded", device="cpu")
    learners = ["gd", "gd/random-labels"]
    found = compare(model, demonstrations=shown, queries=["a bore", "a miracle"], learners=learners)
    assert repr(found) == "Comparison of in-context, gd, gd/random-labels on 2 queries of examples, 3 shots"
    measured = {row["metric"] for row in found.rows}
    assert not {name for name in measured if METRICS[name].needs_gold}  # no query says what is right
    assert {"accuracy", "null_learned", "icl_learned"} <= {name for name in METRICS if METRICS[name].needs_gold}
    assert found.lr is not None
    assert found.verdict.startswith("Undecided: one episode is one seed. Likeness to in-context learning: gd")
    assert "<th>gd</th>" in found._repr_html_()
    assert len(found.plot().axes[0].lines) >= 2
    same = Model.from_hf(model.hf, model.tokenizer)
    again = compare(same, demonstrations=shown, queries=["a bore", "a miracle"], learners=["gd"], lr=found.lr)
    np.testing.assert_array_equal(again.layers("sim_aou")["gd"], found.layers("sim_aou")["gd"])
    labelled = compare(model, demonstrations=shown, queries=[("a bore", "Negative")], learners=["gd"], lr=1.0)
    assert labelled.table("accuracy").num_rows == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"demonstrations": [("a", "b"), ("c", "d")]}, "need queries"),
        ({"demonstrations": ["a => b"], "queries": ["c"]}, "pair of text and label"),
        ({"task": "embedded-sst2", "queries": ["c"]}, "demonstrations of your own"),
        ({}, "give a task"),
    ],
)
def test_own_demonstrations_that_cannot_be_compared(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare("embedded", **wrong)
