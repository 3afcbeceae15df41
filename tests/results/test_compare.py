"""compare(): the same numbers as a study's, for people in notebooks; and the summary of a run."""

import math
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualscope import LEARNERS, METRICS, InputError, Learner, Model, Study, Task, compare, run_study
from dualscope.findings.summary import ALL_TASKS, recalled, summarise
from dualscope.findings.verdict import stored_cells
from dualscope.metrics import simple_metric


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


FEW: dict[str, Any] = {"shots": 4, "queries": 4, "lr": 1.0}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("embedded", device="cpu")


def _asked(model: Any, learners: Any = "gd", task: str = "embedded-sst2", **more: Any) -> Any:
    return compare(model, task, learners, **{**FEW, "metrics": ["accuracy"], **more})


class Unregistered(Learner[Any]):
    """A learner without a name."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shots": "8"}, "shots: a whole number from 1 on is needed, found '8': write 8, without quotes"),
        ({"shots": 4.0}, "write 4"),
        ({"shots": True}, "shots: a whole number"),
        ({"queries": 0}, "queries: a whole number from 1 on"),
        ({"seed": [0, 1]}, "several seeds are a study's"),
        ({"learning_rate": 1.0}, "no argument 'learning_rate': it is called lr here"),
        ({"ballanced": True}, "did you mean balanced"),
        ({"learners": []}, "learners: none is given"),
        ({"learners": 3}, "learners: names, or mappings"),
        ({"learners": [3]}, "learners: a name or a mapping"),
        ({"learners": {"epochs": 3}}, "a mapping needs a name"),
        ({"learners": Unregistered}, "Unregistered is not registered"),
    ],
)
def test_one_message_says_what_to_type(model: Model, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        _asked(model, **given)
    assert words in str(error.value)


def test_a_module_needs_its_tokenizer_and_weights(model: Model) -> None:
    with pytest.raises(InputError, match=r"comes without its tokenizer.*Model\.from_hf"):
        _asked(model.hf)
    assert _asked((model.hf, model.tokenizer)).table("accuracy").num_rows == 3
    with torch.device("meta"):
        empty = type(model.hf)(model.hf.config)
    with pytest.raises(InputError, match="on the meta device"):
        _asked((empty, model.tokenizer))
    with pytest.raises(InputError, match="no causal language model"):
        Model.from_hf(torch.nn.Linear(2, 2), model.tokenizer)


def test_a_learner_is_known_by_its_class(model: Model) -> None:
    assert set(_asked(model, LEARNERS["gd"]).traces) == set(_asked(model, [LEARNERS["gd"]()]).traces)


def test_capitals_are_forgiven_with_a_word(model: Model) -> None:
    with pytest.warns(UserWarning, match="the learner is called 'gd'"):
        assert "gd" in _asked(model, "GD").traces
    with pytest.warns(UserWarning, match="the task is called 'embedded-sst2'"):
        assert Task.load("Embedded-SST2").name == "embedded-sst2"
    with pytest.raises(InputError, match="did you mean sim_aou"):
        METRICS["SIM_AUO"]


@pytest.mark.usefixtures("forget")
def test_a_registered_metric_is_measured(model: Model) -> None:
    @simple_metric("certainty_here", "max_k p_k", "the largest label probability")
    def certainty(case: Any) -> Any:
        return case.trace.label_logprobs.exp().amax(-1)

    found = _asked(model, metrics=None)
    assert found.table("certainty_here").num_rows == 3


def test_what_is_printed_has_the_likeness_and_the_response(model: Model) -> None:
    found = _asked(model, ["gd"], shots=8, metrics=None, interventions="relabel", draws=8)
    lines = str(found).splitlines()
    assert {"sim_aou", "learned_share", "response_answers", "response_aou"} <= set(lines[1].split())
    gd = next(line for line in lines if line.split()[0] == "gd")
    value = next(r["value"] for r in found.rows if r["metric"] == "response_answers" and r["reference"] == "in-context")
    written = f"{value:.2f}".replace("0.", ".").replace("-", "−")
    assert written in gd
    assert f"Response to changed labels: gd {written}." in lines[-1]
    without = str(_asked(model, ["probe"]))  # nothing here has a rate or changes attention
    assert "None" not in without
    assert "Response to changed labels: not measured (`interventions` does)" in without
    for one in (model, *found.traces.values(), found):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 120


def test_a_study_by_name_or_built_by_hand(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown field 'learnrs'"):
        Study(tasks=("embedded-sst2",), learnrs=["gd"])  # type: ignore[call-arg]
    with pytest.raises(InputError, match="did you mean quick"):
        run_study("quik", tmp_path / "run")
    with pytest.raises(InputError, match="found int"):
        run_study(3, tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no argument 'jbos': did you mean jobs"):
        run_study({"tasks": "embedded-sst2"}, tmp_path / "run", jbos=1)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "tasks: [embedded-sst2]\nlearners: [gd]\nlr: 1.0\nshots: 2\nseeds: 1\nqueries: 4\n"
        "controls: []\nvariants: [trained]\ninterventions: []\n"
    )
    outcome = run_study(str(file), tmp_path / "run", progress=False)
    assert outcome.complete
    assert repr(outcome) == f"RunOutcome(3 cells, 3 computed now, 0 failed, in {str(tmp_path / 'run')!r})"


def test_where_there_is_no_network_an_unknown_model_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library would try again for minutes."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    import huggingface_hub.constants as constants

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(InputError, match="the hub cannot be reached"):
        Model.load("nobody/nothing-at-all")
    assert time.monotonic() - began < 5
