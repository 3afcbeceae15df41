"""What a run computes, how often, and what a second one does."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dualscope import Run, run_study
from dualscope.core.rows import COLUMNS
from dualscope.core.spec import LearnerSpec
from dualscope.findings.summary import summarise
from dualscope.findings.verdict import stored_cells
from dualscope.learners import Bench, InContext, ZeroShot
from dualscope.learners.gradient.descend import READ_TWICE
from dualscope.models.reading import footprint
from dualscope.studies import Study
from dualscope.studies.execute.runner import Runner
from dualscope.studies.execute.worker import IN_FILES
from dualscope.studies.run_folder.storage import GIVEN_UP
from tests.studies.children import files, rows


def test_a_run_holds_what_the_design_says(fields: dict[str, Any], tmp_path: Path) -> None:
    result = run_study(fields | {"save_traces": True}, tmp_path / "run", device="cpu")
    assert result.complete
    ids = {cell.id for cell in result.cells}
    assert len(ids) == len(result.cells) == 6  # zero-shot, in-context and gd, for two seeds
    assert set(result.computed) == ids == result.run.stored()
    expected = {"study.yaml", "provenance.json"} | {
        f"{part}/{cell}.{end}"
        for cell in ids
        for part, end in (("cells", "parquet"), ("queries", "parquet"), ("traces", "safetensors"))
    }
    there = {name for name in files(tmp_path / "run") if not name.startswith("provenance/")}
    texts = {name for name in there if name.startswith("texts/")}
    assert texts  # of the queries, once an episode
    assert there - texts == expected
    assert result.run.rows().column_names == list(COLUMNS)
    found = {(row["learner"], row["seed"], row["shots"]) for row in result.run.rows().to_pylist()}
    assert found == {(n, s, 0 if n == "zero-shot" else 4) for n in ("zero-shot", "in-context", "gd") for s in (0, 1)}
    known = result.run.read_json("provenance.json")
    assert known["packages"]["torch"]
    assert len(known["episodes"]["moods, seed 1, order 0, 4 shots"]["demonstrations"]) == 4


def test_the_same_study_again_computes_nothing_and_changed_options_add_cells(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    first = run_study(fields, tmp_path, device="cpu").run.stored()
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path) if "cells" in name}
    assert run_study(fields, tmp_path, device="cpu").computed == []
    more = run_study(fields | {"lr": [0.1, 0.2]}, tmp_path, device="cpu")
    assert len(more.computed) == 2
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before
    assert first < more.run.stored()


def test_each_shared_trace_is_computed_once(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many learners and rates: zero-shot once a draw of weights and task, in-context once an episode."""
    counts: Counter[str] = Counter()
    for name, kind in (("zero_shot", ZeroShot), ("in_context", InContext)):

        def counted(self: Any, *args: Any, made: Any = kind.learn, name: str = name) -> Any:
            counts[name] += 1
            return made(self, *args)

        monkeypatch.setattr(kind, "learn", counted)
    loads: Counter[str] = Counter()
    from dualscope.models.loading import load as loading

    load = loading.load
    monkeypatch.setattr(
        loading, "load", lambda *a, **k: loads.update([f"{k['variant']} {k['init_seed']}"]) or load(*a, **k)
    )
    study = fields | {
        "variants": ["trained", "untrained"],
        "shots": [4, 2],
        "lr": [0.1, 0.3],
        "learners": ["gd", "lcgd", "gd/random-update", "null-context"],
    }
    result = run_study(study, tmp_path, device="cpu")
    assert result.complete, result.failures
    assert loads == {"trained 0": 1, "untrained 0": 1, "untrained 1": 1}
    assert counts["zero_shot"] == 3  # trained, and a draw of weights for each of the two seeds
    assert counts["in_context"] == 2 * 2 * 2  # variants, seeds, shots


def test_what_is_held_does_not_grow_with_the_rates(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []
    result_of = Bench.result

    def watched(bench: Bench, learning: LearnerSpec) -> Any:
        found = result_of(bench, learning)
        held.append(len(bench._learned))
        return found

    monkeypatch.setattr(Bench, "result", watched)
    study = fields | {"learners": ["gd", "lcgd", "gd/random-update", "null-context"], "seeds": 1}
    run_study(study | {"lr": [0.1]}, tmp_path / "one", device="cpu")
    one = max(held)
    held.clear()
    result = run_study(study | {"lr": [0.1, 0.2, 0.3, 0.4]}, tmp_path / "four", device="cpu")
    assert result.complete, result.failures
    assert max(held) <= one


def test_orders_are_no_further_seeds(fields: dict[str, Any], tmp_path: Path) -> None:
    """Orders of the same demonstrations are one draw of them, however many there are."""
    result = run_study(fields | {"orders": [0, 1, 2]}, tmp_path / "run")
    rows = summarise(result.run, stored_cells(result.run, result.cells))
    similar = next(r for r in rows if r["metric"] == "sim_aou" and r["learner"] == "gd")
    assert similar["seeds"] == 2
    every = [
        r["value"]
        for r in result.run.rows().to_pylist()
        if (r["learner"], r["metric"], r["layer"]) == ("gd", "sim_aou", None)
    ]
    assert len(every) == 6
    assert similar["value"] == pytest.approx(sum(every) / 6)


def test_a_rate_is_chosen_once_and_its_curve_kept(fields: dict[str, Any], tmp_path: Path) -> None:
    study = fields | {"lr": "auto", "variants": ["trained", "untrained"]}
    result = run_study(study, tmp_path, device="cpu")
    assert result.complete, result.failures
    (name,) = result.run.folder.names("choices")
    choice = result.run.read_json(f"choices/{name}")
    rates = {row["lr"] for row in result.run.rows().to_pylist() if row["learner"] == "gd"}
    assert rates == {choice["settings"]["lr"]}
    assert {row["seed"] for row in choice["curve"]} == {0, 1}
    assert run_study(study, tmp_path, device="cpu").computed == []


def test_recorded_rates_come_from_the_model_card(fields: dict[str, Any], tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "carded"
    shutil.copytree(fields["models"][0], model)
    (model / "README.md").write_text("---\nlicense: mit\nrates:\n  moods: 0.25\n---\n# A model\n")
    study = Study.build(fields | {"models": [str(model)], "lr": "recorded"})
    plan = Runner(study, tmp_path / "run").plan()
    assert {cell.learning.lr for cell in plan.cells if cell.learning.name == "gd"} == {0.25}
    assert plan.choices == []


def test_jobs_give_the_same_rows(fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of either; more threads round sums otherwise
    alone = run_study(fields, tmp_path / "one", device="cpu")
    result = run_study(fields, tmp_path / "two", jobs=2, device="cpu")
    assert result.complete, result.failures
    assert sorted(result.computed) == sorted(alone.computed)
    assert rows(tmp_path / "one") == rows(tmp_path / "two")


def test_the_study_of_a_run_runs_from_anywhere(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Path(fields["tasks"][0])
    monkeypatch.chdir(task.parent)
    first = run_study(fields | {"tasks": [task.name], "seeds": 1}, tmp_path / "run", device="cpu")
    monkeypatch.chdir(tmp_path)
    again = run_study(Study.resolve(file="run/study.yaml"), tmp_path / "run", device="cpu")
    assert first.complete
    assert again.complete
    assert again.computed == []


def test_traces_missing_from_a_finished_study_are_made(fields: dict[str, Any], tmp_path: Path) -> None:
    run_study(fields, tmp_path, device="cpu")
    again = run_study(fields | {"save_traces": True}, tmp_path, device="cpu")
    assert len(again.computed) == len(again.cells)
    assert len(again.run.folder.names("traces")) == len(again.cells)


def test_queries_table_has_what_statistics_resample(fields: dict[str, Any], tmp_path: Path) -> None:
    result = run_study(fields | {"per_query": True}, tmp_path, device="cpu")
    gd = next(cell for cell in result.cells if cell.learning.name == "gd")
    table = result.run.queries(gd.id)
    assert {"query", "prediction", "label_logprobs", "sim_aou", "sim_aou_layers"} <= set(table.column_names)
    assert table.num_rows == 12
    assert pq.read_schema(tmp_path / f"queries/{gd.id}.parquet")


def test_a_run_behind_an_fsspec_url(fields: dict[str, Any], tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    assert run_study(fields, url, device="cpu").complete
    assert run_study(fields, url, device="cpu").computed == []
    local = run_study(fields, tmp_path / "run", device="cpu").run
    assert repr(Run.open(url).rows().to_pydict()) == repr(local.rows().to_pydict())


def test_a_cell_notes_what_was_given_up_for_memory(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "TRAINED_TWICE", 100)
    result = run_study(fields | {"seeds": 1, "dtype": "float32"}, tmp_path / "run", device="cpu")
    noted = {cell.learning.name: result.run.notes(cell.id).get(GIVEN_UP) for cell in result.cells}
    assert noted == {"zero-shot": None, "in-context": None, "gd": READ_TWICE}


def test_a_run_whose_traces_are_in_files_has_the_same_rows_and_says_so(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = fields | {"seeds": 1, "save_traces": True}
    plain = run_study(study, tmp_path / "plain", device="cpu").run
    monkeypatch.setattr(footprint, "KEPT", 2**60)  # of all memory, less than a byte
    result = run_study(study, tmp_path / "run", device="cpu")
    assert repr(result.run.rows().to_pydict()) == repr(plain.rows().to_pydict())
    for cell in result.cells:
        assert result.run.notes(cell.id)[GIVEN_UP] == IN_FILES
        traces = [
            (run / f"traces/{cell.id}.safetensors").read_bytes() for run in (tmp_path / "plain", tmp_path / "run")
        ]
        assert traces[0] == traces[1]
