"""What a run computes, how often, and what a second one does."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dualscope.errors import InputError
from dualscope.learners import Bench
from dualscope.studies import Run, Study, run_study
from dualscope.studies.cell import COLUMNS
from dualscope.studies.jobs import suitable_jobs
from dualscope.studies.runner import Runner
from dualscope.studies.summary import summarise
from tests.studies.children import files, finish, rows


def test_a_run_holds_what_the_design_says(fields: dict, tmp_path: Path) -> None:
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
    assert set(files(tmp_path / "run")) == expected
    assert result.run.rows().column_names == list(COLUMNS)
    found = {(row["learner"], row["seed"], row["shots"]) for row in result.run.rows().to_pylist()}
    assert found == {
        (n, s, 0 if n == "zero-shot" else 4) for n in ("zero-shot", "in-context", "gd") for s in (0, 1)
    }
    known = result.run.read_json("provenance.json")
    assert known["packages"]["torch"]
    assert len(known["episodes"]["moods, seed 1, order 0, 4 shots"]["demonstrations"]) == 4


def test_the_same_study_again_computes_nothing_and_changed_options_add_cells(
    fields: dict, tmp_path: Path
) -> None:
    first = run_study(fields, tmp_path, device="cpu").run.stored()
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path) if "cells" in name}
    assert run_study(fields, tmp_path, device="cpu").computed == []
    more = run_study(fields | {"lr": [0.1, 0.2]}, tmp_path, device="cpu")
    assert len(more.computed) == 2
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before
    assert first < more.run.stored()


def test_ids_know_weights_data_and_options_but_not_places(
    fields: dict, task_files: tuple[str, str], tmp_path: Path
) -> None:
    def ids(study: dict, **options: Any) -> set[str]:
        return {cell.id for cell in Runner(Study.build(study), tmp_path / "run", **options).plan().cells}

    base = ids(fields)
    assert ids(fields, device="cpu", jobs=7) == base
    import shutil

    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(fields["models"][0], copy)
    assert ids(fields | {"models": [str(copy)]}) == base
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    assert not ids(fields | {"models": [str(copy)]}) & base
    for change in (
        {"queries": 11},
        {"read_at": "first-label"},
        {"dtype": "float64"},
        {"tasks": [task_files[1]]},
    ):
        assert not ids(fields | change) & base, change
    assert ids(fields | {"shots": [4, 2]}) > base


def test_each_shared_trace_is_computed_once(
    fields: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many learners and rates: zero-shot once a draw of weights and task, in-context once a sitting."""
    counts: Counter[str] = Counter()
    for name in ("zero_shot", "in_context"):
        made = Bench.__dict__[name].func

        def counted(bench: Bench, made: Any = made, name: str = name) -> Any:
            counts[name] += 1
            return made(bench)

        monkeypatch.setattr(Bench.__dict__[name], "func", counted)
    loads: Counter[str] = Counter()
    from dualscope.models import Model

    load = Model.load
    monkeypatch.setattr(
        Model, "load", lambda *a, **k: loads.update([f"{k['variant']} {k['init_seed']}"]) or load(*a, **k)
    )
    study = fields | {
        "variants": ["trained", "untrained"],
        "shots": [4, 2],
        "lr": [0.1, 0.3],
        "learners": ["gd", "lcgd", "random-update", "null-context"],
    }
    result = run_study(study, tmp_path, device="cpu")
    assert result.complete, result.failures
    assert loads == {"trained 0": 1, "untrained 0": 1, "untrained 1": 1}
    assert counts["zero_shot"] == 3  # trained, and a draw of weights for each of the two seeds
    assert counts["in_context"] == 2 * 2 * 2  # variants, seeds, shots


def test_what_is_held_does_not_grow_with_the_rates(
    fields: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []
    learned = Bench.learned

    def watched(bench: Bench, *arguments: Any, **options: Any) -> Any:
        found = learned(bench, *arguments, **options)
        held.append(len(bench._learned))
        return found

    monkeypatch.setattr(Bench, "learned", watched)
    study = fields | {"learners": ["gd", "lcgd", "random-update", "null-context"], "seeds": 1}
    run_study(study | {"lr": [0.1]}, tmp_path / "one", device="cpu")
    one = max(held)
    held.clear()
    result = run_study(study | {"lr": [0.1, 0.2, 0.3, 0.4]}, tmp_path / "four", device="cpu")
    assert result.complete, result.failures
    assert max(held) <= one


def test_untrained_weights_are_drawn_with_the_cells_seed(fields: dict, tmp_path: Path) -> None:
    runner = Runner(Study.build(fields | {"variants": ["untrained"]}), tmp_path)
    assert {(c.sitting.seed, c.sitting.place.init_seed) for c in runner.plan().cells} == {(0, 0), (1, 1)}
    runner = Runner(Study.build(fields | {"variants": ["untrained"], "init_seeds": [5, 6]}), tmp_path)
    assert {c.sitting.place.init_seed for c in runner.plan().cells} == {5, 6}


def test_metrics_get_the_other_learners_they_need(fields: dict, tmp_path: Path) -> None:
    study = fields | {
        "seeds": 1,
        "learners": ["gd", "lcgd", "null-context", {"learner": "gd-reorder", "reference": "gd"}],
    }
    run = run_study(study, tmp_path, device="cpu").run
    found = {(r["learner"], r["metric"], r["reference"]) for r in run.rows().to_pylist()}
    assert ("lcgd", "alpha", "gd") in found
    assert ("gd", "sim_aou_null", "null-context") in found
    assert ("gd-reorder", "sim_aou", "gd") in found
    assert ("gd", "snr", "zero-shot") in found


def test_a_learner_with_options_beside_its_plain_form(fields: dict, tmp_path: Path) -> None:
    twice = {"learner": "gd", "options": {"epochs": 2}, "reference": "gd"}
    study = fields | {"seeds": 1, "learners": [twice, "gd", "null-context"]}
    rows = run_study(study, tmp_path, device="cpu").run.rows().to_pylist()
    found = {
        r["reference"]: r["value"] for r in rows if r["metric"] == "sim_aou" and '"epochs"' in r["options"]
    }
    assert None not in found
    assert found["gd"] < 1
    noise = [r for r in rows if r["learner"] == "null-context" and r["metric"] == "snr"]
    assert noise


def test_orders_are_no_further_seeds(fields: dict, tmp_path: Path) -> None:
    """Orders of the same demonstrations are one draw of them, however many there are."""
    result = run_study(fields | {"orders": [0, 1, 2]}, tmp_path / "run")
    rows = summarise(result.run, result.cells)
    similar = next(r for r in rows if r["metric"] == "sim_aou" and r["learner"] == "gd")
    assert similar["seeds"] == 2
    every = [
        r["value"]
        for r in result.run.rows().to_pylist()
        if (r["learner"], r["metric"], r["layer"]) == ("gd", "sim_aou", None)
    ]
    assert len(every) == 6
    assert similar["value"] == pytest.approx(sum(every) / 6)


def test_a_reference_goes_by_its_alias_too(fields: dict, tmp_path: Path) -> None:
    def cells(reference: str) -> set[str]:
        learners = [{"learner": "gd"}, {"learner": "lcgd", "reference": reference}]
        return {
            cell.id for cell in Runner(Study.build(fields | {"learners": learners}), tmp_path).plan().cells
        }

    assert cells("icl") == cells("in-context")
    assert cells("ft") == cells("gd") != cells("icl")


def test_shards_part_the_study(fields: dict, tmp_path: Path) -> None:
    whole = {cell.id for cell in Runner(Study.build(fields), tmp_path).plan().cells}
    parts = [
        {c.id for c in Runner(Study.build(fields), tmp_path, shard=(i, 3)).plan().cells} for i in (1, 2, 3)
    ]
    assert set.union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)


def test_a_rate_is_chosen_once_and_its_curve_kept(fields: dict, tmp_path: Path) -> None:
    study = fields | {"lr": "auto", "variants": ["trained", "untrained"]}
    result = run_study(study, tmp_path, device="cpu")
    assert result.complete, result.failures
    (name,) = result.run.folder.names("rates")
    choice = result.run.read_json(f"rates/{name}")
    rates = {row["lr"] for row in result.run.rows().to_pylist() if row["learner"] == "gd"}
    assert rates == {choice["rate"]}
    assert {row["seed"] for row in choice["curve"]} == {0, 1}
    assert run_study(study, tmp_path, device="cpu").computed == []


def test_recorded_rates_come_from_the_model_card(fields: dict, tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "carded"
    shutil.copytree(fields["models"][0], model)
    (model / "README.md").write_text("---\nlicense: mit\nrates:\n  moods: 0.25\n---\n# A model\n")
    study = Study.build(fields | {"models": [str(model)], "lr": "recorded"})
    plan = Runner(study, tmp_path / "run").plan()
    assert {cell.learning.lr for cell in plan.cells if cell.learning.learner == "gd"} == {0.25}
    assert plan.rates == []


def test_controls_of_another_task(fields: dict, task_files: tuple[str, str], tmp_path: Path) -> None:
    learners = ["gd", "gd-other-task", {"learner": "null-context", "options": {"kind": "other-task"}}]
    alone = run_study(fields | {"learners": learners}, tmp_path / "one", device="cpu")
    assert any("gd-other-task" in note for note in alone.notes)
    two = run_study(
        fields | {"learners": learners, "tasks": list(task_files), "seeds": 1}, tmp_path / "two", device="cpu"
    )
    assert two.complete, two.failures
    assert {"gd-other-task", "null-context"} <= {r["learner"] for r in two.run.rows().to_pylist()}


def test_jobs_give_the_same_rows(fields: dict, tmp_path: Path) -> None:
    computed, failures = finish(fields, tmp_path / "one")
    assert not failures
    finish_in_jobs = subprocess.run(
        [sys.executable, "-c", _IN_JOBS, repr(fields), str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "OMP_NUM_THREADS": "1"},
    )
    assert finish_in_jobs.returncode == 0, finish_in_jobs.stderr
    assert finish_in_jobs.stdout.split() == sorted(computed)
    assert rows(tmp_path / "one") == rows(tmp_path / "two")


_IN_JOBS = """
import ast, sys
from dualscope.studies import run_study
if __name__ == "__main__":
    result = run_study(ast.literal_eval(sys.argv[1]), sys.argv[2], jobs=2, device="cpu")
    assert result.complete, result.failures
    print(*sorted(result.computed))
"""


def test_a_learner_may_be_asked_for_on_some_variants_only(fields: dict, tmp_path: Path) -> None:
    only = {"learner": "zero-shot-offset", "variants": ["trained"]}
    study = fields | {"variants": ["trained", "untrained"], "learners": ["gd", only]}
    result = run_study(study, tmp_path / "run", device="cpu")
    found = {(cell.sitting.place.variant, cell.learning.learner) for cell in result.cells}
    everywhere = {"zero-shot", "in-context", "gd"}
    assert found == {("trained", "zero-shot-offset")} | {
        (variant, learner) for variant in ("trained", "untrained") for learner in everywhere
    }
    assert result.notes == []
    alone = run_study(study | {"variants": ["untrained"]}, tmp_path / "alone", device="cpu")
    assert [note for note in alone.notes if "left out zero-shot-offset" in note]


def test_jobs_that_suit(fields: dict) -> None:
    assert suitable_jobs(fields["models"], "cpu") >= 1
    assert suitable_jobs(fields["models"], "cuda") == 1
    assert suitable_jobs(["owner/not-here"], "cpu") == 1


def test_traces_missing_from_a_finished_study_are_made(fields: dict, tmp_path: Path) -> None:
    run_study(fields, tmp_path, device="cpu")
    again = run_study(fields | {"save_traces": True}, tmp_path, device="cpu")
    assert len(again.computed) == len(again.cells)
    assert len(again.run.folder.names("traces")) == len(again.cells)


def test_queries_table_has_what_statistics_resample(fields: dict, tmp_path: Path) -> None:
    result = run_study(fields | {"per_query": True}, tmp_path, device="cpu")
    gd = next(cell for cell in result.cells if cell.learning.learner == "gd")
    table = result.run.queries(gd.id)
    assert {"query", "prediction", "label_logprobs", "sim_aou", "sim_aou_layers"} <= set(table.column_names)
    assert table.num_rows == 12
    assert pq.read_schema(tmp_path / f"queries/{gd.id}.parquet")


def test_a_run_behind_an_fsspec_url(fields: dict, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    assert run_study(fields, url, device="cpu").complete
    assert run_study(fields, url, device="cpu").computed == []
    local = run_study(fields, tmp_path / "run", device="cpu").run
    assert repr(Run.open(url).rows().to_pydict()) == repr(local.rows().to_pydict())


def test_unknown_names_are_refused_before_anything_runs(fields: dict, tmp_path: Path) -> None:
    for change, words in (
        ({"learners": ["gdd"]}, "unknown learner 'gdd'"),
        ({"learners": [{"learner": "gd", "options": {"epoch": 2}}]}, "option 'epoch'"),
        ({"learners": [{"learner": "gd", "reference": "icll"}]}, "unknown learner 'icll'"),
        ({"metrics": ["sim_au"]}, "unknown metric 'sim_au'"),
        ({"models": ["./nowhere"]}, "no such folder"),
        (
            {"tasks": [fields["tasks"][0], {"task": fields["tasks"][0], "seeds": 1}]},
            "two tasks are called 'moods'",
        ),
    ):
        with pytest.raises(InputError, match=words):
            run_study(fields | change, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "cells").exists()
