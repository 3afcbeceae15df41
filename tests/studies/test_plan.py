"""The plan of a study: which cells there are, by which ids, and what each has beside it."""

from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study
from dualscope.core.errors import InputError
from dualscope.studies import Study
from dualscope.studies.execute.runner import Runner
from dualscope.studies.provenance import known


def test_ids_know_weights_data_and_options_but_not_places(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path
) -> None:
    def ids(study: dict[str, Any], **options: Any) -> set[str]:
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
    for change in ({"queries": 11}, {"read_at": "first-label"}, {"dtype": "bfloat16"}, {"tasks": [task_files[1]]}):
        assert not ids(fields | change) & base, change
    assert ids(fields | {"shots": [4, 2]}) > base


def test_untrained_weights_are_drawn_with_the_cells_seed(fields: dict[str, Any], tmp_path: Path) -> None:
    runner = Runner(Study.build(fields | {"variants": ["untrained"]}), tmp_path)
    assert {(c.episode.seed, c.episode.model.init_seed) for c in runner.plan().cells} == {(0, 0), (1, 1)}
    runner = Runner(Study.build(fields | {"variants": ["untrained"], "init_seeds": [5, 6]}), tmp_path)
    assert {c.episode.model.init_seed for c in runner.plan().cells} == {5, 6}


def test_metrics_get_the_other_learners_they_need(fields: dict[str, Any], tmp_path: Path) -> None:
    study = fields | {
        "seeds": 1,
        "learners": ["gd", "lcgd", "null-context", {"learner": "gd/reorder", "reference": "gd"}],
    }
    run = run_study(study, tmp_path, device="cpu").run
    rows = run.rows().to_pylist()
    found = {(r["learner"], r["control"], r["metric"], r["reference"]) for r in rows}
    assert ("lcgd", None, "alpha", "gd") in found
    assert ("gd", None, "sim_aou_null", "null-context") in found
    assert ("gd/reorder", "reorder", "sim_aou", "gd") in found
    assert ("gd", None, "snr", "zero-shot") in found


def test_a_learner_with_options_beside_its_plain_form(fields: dict[str, Any], tmp_path: Path) -> None:
    twice = {"learner": "gd", "options": {"epochs": 2}, "reference": "gd"}
    study = fields | {"seeds": 1, "learners": [twice, "gd", "null-context"]}
    rows = run_study(study, tmp_path, device="cpu").run.rows().to_pylist()
    found = {r["reference"]: r["value"] for r in rows if r["metric"] == "sim_aou" and '"epochs"' in r["options"]}
    assert None not in found
    assert found["gd"] < 1
    noise = [r for r in rows if r["learner"] == "null-context" and r["metric"] == "snr"]
    assert noise


def test_a_reference_goes_by_its_alias_too(fields: dict[str, Any], tmp_path: Path) -> None:
    def cells(reference: str) -> set[str]:
        learners = [{"learner": "gd"}, {"learner": "lcgd", "reference": reference}]
        return {cell.id for cell in Runner(Study.build(fields | {"learners": learners}), tmp_path).plan().cells}

    assert cells("icl") == cells("in-context")
    assert cells("ft") == cells("gd") != cells("icl")


def test_shards_part_the_study(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = {cell.id for cell in Runner(Study.build(fields), tmp_path).plan().cells}
    parts = [{c.id for c in Runner(Study.build(fields), tmp_path, shard=(i, 3)).plan().cells} for i in (1, 2, 3)]
    assert set.union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)


def test_controls_of_another_task(fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path) -> None:
    learners = ["gd", "gd/other-task", {"learner": "null-context", "options": {"kind": "other-task"}}]
    alone = run_study(fields | {"learners": learners}, tmp_path / "one", device="cpu")
    assert any("gd/other-task" in note for note in alone.notes)
    two = run_study(
        fields | {"learners": learners, "tasks": list(task_files), "seeds": 1}, tmp_path / "two", device="cpu"
    )
    assert two.complete, two.failures
    found = {(r["learner"], r["control"], r["role"]) for r in two.run.rows().to_pylist()}
    assert {("gd/other-task", "other-task", "null"), ("null-context", None, "null")} <= found


def test_a_learner_may_be_asked_for_on_some_variants_only(fields: dict[str, Any], tmp_path: Path) -> None:
    only = {"learner": "zero-shot-offset", "variants": ["trained"]}
    study = fields | {"variants": ["trained", "untrained"], "learners": ["gd", only]}
    result = run_study(study, tmp_path / "run", device="cpu")
    found = {(cell.episode.model.variant, cell.learning.name) for cell in result.cells}
    everywhere = {"zero-shot", "in-context", "gd"}
    assert found == {("trained", "zero-shot-offset")} | {
        (variant, learner) for variant in ("trained", "untrained") for learner in everywhere
    }
    assert result.notes == []
    alone = run_study(study | {"variants": ["untrained"]}, tmp_path / "alone", device="cpu")
    assert [note for note in alone.notes if "left out zero-shot-offset" in note]


def test_what_changes_nothing_is_under_no_random_update(fields: dict[str, Any], tmp_path: Path) -> None:
    """A control of the study passes it by, with a note; asked for by name it is refused before anything runs."""
    probed = fields | {"learners": ["gd", "probe"], "controls": ["random-labels", "random-update"], "seeds": 1}
    result = run_study(probed, tmp_path / "run", device="cpu")
    assert result.complete
    assert [note for note in result.asides if "left out probe/random-update: 'probe' changes neither" in note]
    found = {(cell.learning.name, cell.learning.control) for cell in result.cells}
    assert found >= {("gd", "random-update"), ("probe", "random-labels"), ("probe", None)}
    assert ("probe", "random-update") not in found
    with pytest.raises(InputError, match="learner 'probe' under random-update: 'probe' changes neither weights"):
        run_study(fields | {"learners": ["probe/random-update"]}, tmp_path / "other", device="cpu")
    assert not (tmp_path / "other" / "cells").exists()


def test_unknown_names_are_refused_before_anything_runs(fields: dict[str, Any], tmp_path: Path) -> None:
    for change, words in (
        ({"learners": ["gdd"]}, "unknown learner 'gdd'"),
        ({"learners": [{"learner": "gd", "options": {"epoch": 2}}]}, "option 'epoch'"),
        ({"learners": [{"learner": "gd", "reference": "icll"}]}, "unknown learner 'icll'"),
        ({"metrics": ["sim_au"]}, "unknown metric 'sim_au'"),
        ({"models": ["./nowhere"]}, "no such folder"),
        ({"tasks": [fields["tasks"][0], {"task": fields["tasks"][0], "seeds": 1}]}, "two tasks are called 'moods'"),
    ):
        with pytest.raises(InputError, match=words):
            run_study(fields | change, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "cells").exists()


def test_orders_by_seed_and_an_order_of_gds_own(fields: dict[str, Any], tmp_path: Path) -> None:
    study = fields | {"seeds": [3, 5, 7], "orders": "by-seed", "gd_order": "own"}
    cells = Runner(Study.build(study), tmp_path).plan().cells
    shown = {(c.episode.seed, c.episode.order, c.episode.gd_order) for c in cells if c.role != "baseline"}
    assert shown == {(3, 0, "same"), (5, 1, "own"), (7, 2, "own")}
    assert {c.columns(4)["gd_order"] for c in cells if c.episode.seed == 5 and c.role != "baseline"} == {"own"}


@pytest.mark.parametrize(("device", "expected"), [("cpu", "float64"), ("cuda", "float32")])
def test_small_models_on_a_cpu_are_computed_in_float64(
    fields: dict[str, Any], tmp_path: Path, device: str, expected: str
) -> None:
    def places(study: dict[str, Any], where: str) -> set[str]:
        runner = Runner(Study.build(study), tmp_path / where, device=device)
        return {cell.episode.model.dtype for cell in runner.plan().cells}

    asked = {key: value for key, value in fields.items() if key != "dtype"}
    assert places(asked, "auto") == {expected}
    assert places(asked | {"dtype": "float32"}, "float32") == {"float32"}


def test_a_run_keeps_the_precision_it_was_begun_with(fields: dict[str, Any], tmp_path: Path) -> None:
    """Resumed where there is an accelerator, its cells are the same ones; its rows and its provenance say which."""
    asked = {key: value for key, value in fields.items() if key != "dtype"} | {"seeds": 1, "learners": ["gd"]}
    run = run_study(asked, tmp_path, device="cpu").run
    assert {row["dtype"] for row in run.rows().to_pylist()} == {"float64"}
    kept = known(run)
    assert kept["dtype"] == "float64"
    assert set(kept["automatic"].values()) == {"float64"}
    again = Runner(Study.build(asked), tmp_path, device="cuda").plan().cells
    assert {cell.id for cell in again} <= run.stored()
