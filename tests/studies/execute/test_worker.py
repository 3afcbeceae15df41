"""Whatever goes wrong in a cell is reported for that cell, and everything else completes."""

import gc
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualscope import run_study
from dualscope.core.spec import ModelSpec
from dualscope.learners import LEARNERS, Bench, Learned, Learner, Options
from dualscope.models import Model
from dualscope.models.loading import load as loading
from dualscope.models.loading import model_variants as drawing
from dualscope.models.loading.digest import model_digest
from dualscope.models.loading.model_variants import DRAWN
from dualscope.studies import RunOutcome
from dualscope.studies.execute.runner import Runner
from dualscope.studies.execute.work import CellError, WorkerSetup
from dualscope.studies.execute.worker import LoadedModel
from dualscope.studies.study import Study

KEPT = ("seed", "metric", "reference", "layer", "step", "value")  # of a row: which it is, and its number
PLUGIN = '''
import torch
from dataclasses import replace
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("raises")
class Raises(Learner):
    """Raises."""
    def learn(self, bench, lr, options):
        if bench.lesson.episode.seed == 0:
            raise ZeroDivisionError("seed 0 is bad")
        return Learned(bench.zero_shot)

@LEARNERS.register("makes-nan")
class MakesNan(Learner):
    """Makes NaNs."""
    needs_lr = True
    def learn(self, bench, lr, options):
        trace = bench.zero_shot
        return Learned(replace(trace, label_logprobs=torch.full_like(trace.label_logprobs, float("nan"))))

@LEARNERS.register("exits")
class Exits(Learner):
    """Ends the program."""
    def learn(self, bench, lr, options):
        raise SystemExit(7)

@LEARNERS.register("spoils-weights")
class SpoilsWeights(Learner):
    """Leaves a weight changed, in a way that no version counter tells."""
    def learn(self, bench, lr, options):
        next(bench.model.hf.parameters()).data[0, 0] += 1
        return Learned(bench.zero_shot)

@LEARNERS.register("spoils-and-raises")
class SpoilsAndRaises(Learner):
    """The same, and fails."""
    def learn(self, bench, lr, options):
        next(bench.model.hf.parameters()).data[0, 0] += 1
        raise ValueError("half-way")

@LEARNERS.register("spoils-hooks")
class SpoilsHooks(Learner):
    """Leaves a hook behind."""
    def learn(self, bench, lr, options):
        bench.model.hf.register_forward_pre_hook(lambda *arguments: None)
        return Learned(bench.zero_shot)

@LEARNERS.register("starves")
class Starves(Learner):
    """Runs out of memory, whatever the batch."""
    def learn(self, bench, lr, options):
        raise torch.OutOfMemoryError("CUDA out of memory")
'''


@pytest.fixture
def plugin(forget: None, tmp_path: Path) -> str:
    file = tmp_path / "faults.py"
    file.write_text(PLUGIN)
    return str(file)


def _reasons(result: RunOutcome) -> dict[str, str]:
    return {f"{failure.about.rpartition('· ')[2]}": failure.reason for failure in result.failures}


def test_bad_learners(fields: dict[str, Any], plugin: str, tmp_path: Path) -> None:
    study = fields | {"plugins": [plugin], "learners": ["raises", "makes-nan", "starves", "gd"]}
    result = run_study(study, tmp_path / "run", device="cpu")
    reasons = _reasons(result)
    assert reasons["raises"] == "ZeroDivisionError: seed 0 is bad"
    assert "not finite in 12 of 12 queries; a learning rate below 0.1" in reasons["makes-nan lr 0.1"]
    assert reasons["starves"].startswith("out of memory, even one query at a time: use fewer --shots")
    assert len(result.failures) == 5  # `raises` on one of two seeds, the others on both
    assert len(result.computed) == 4 + 2 + 1
    kept = result.run.failures()
    assert set(kept) == {failure.key for failure in result.failures}
    assert any("ZeroDivisionError" in text and "Traceback" in text for text in kept.values())
    assert len(run_study(study, tmp_path / "run", device="cpu").failures) == 5  # tried again, and said again


def test_a_learner_that_leaves_the_model_changed_spoils_no_other_cell(
    fields: dict[str, Any], plugin: str, tmp_path: Path
) -> None:
    plain = run_study(fields, tmp_path / "plain", device="cpu").run.rows().to_pylist()
    spoilers = ["spoils-weights", "spoils-and-raises", "spoils-hooks", "exits"]
    study = fields | {"plugins": [plugin], "learners": [*spoilers, "gd"]}
    result = run_study(study, tmp_path / "run", device="cpu")
    reasons = _reasons(result)
    assert "left the model changed (the weight 'transformer.wte.weight')" in reasons["spoils-weights"]
    assert reasons["spoils-and-raises"] == "ValueError: half-way"
    assert "left the model changed (its hooks or methods)" in reasons["spoils-hooks"]
    assert reasons["exits"] == "its code asked the program to end (sys.exit, 7)"
    assert len(result.failures) == 8

    def of_gd(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(repr([row[name] for name in KEPT]) for row in rows if row["learner"] == "gd")

    assert of_gd(result.run.rows().to_pylist()) == of_gd(plain)


def test_threads_follow_from_the_study_and_stay_what_they_were(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dualscope.studies.execute import worker_count as jobs

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "cores", lambda: 2)

    def resume(how_many: int) -> tuple[set[str], list[str]]:
        """Compute one piece anew: with how many threads, and what was said."""
        lost = sorted((tmp_path / "cells").iterdir())[0] if (tmp_path / "cells").exists() else None
        if lost is not None:
            lost.unlink()
        result = run_study(fields | {"seeds": 1}, tmp_path, device="cpu", jobs=how_many)
        assert len(result.computed) == (1 if lost else 3)
        return {result.run.notes(cell)["threads"] for cell in result.computed}, result.notes

    before = torch.get_num_threads()
    assert resume(1) == ({"2"}, [])
    assert resume(2) == ({"2"}, [])  # one piece is left: it has the threads that the others had
    monkeypatch.setattr(jobs, "cores", lambda: 1)
    threads, notes = resume(1)
    assert threads == {"1"}
    assert "begun with 2 threads a worker" in notes[0]
    assert torch.get_num_threads() == before
    assert jobs.suitable_threads(2) == 1


def test_a_failure_is_forgotten_once_the_cell_succeeds(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gd = LEARNERS["gd"]
    with monkeypatch.context() as patch:
        patch.setattr(gd, "learn", lambda *arguments: 1 / 0)
        assert len(run_study(fields, tmp_path, device="cpu").failures) == 2
    result = run_study(fields, tmp_path, device="cpu")
    assert result.complete
    assert len(result.computed) == 2
    assert result.run.failures() == {}
    assert not (tmp_path / "failures").exists()


def test_a_model_that_cannot_be_loaded_fails_its_cells_alone(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load = loading.load

    def sometimes(*arguments: Any, **options: Any) -> Model:
        if options["variant"] == "untrained":
            raise RuntimeError("no such luck")
        return load(*arguments, **options)

    monkeypatch.setattr(loading, "load", sometimes)
    result = run_study(fields | {"variants": ["untrained", "trained"]}, tmp_path, device="cpu")
    assert {failure.reason for failure in result.failures} == {"RuntimeError: no such luck"}
    assert len(result.failures) == len(result.computed) == 6


def test_weights_that_change_after_the_plan_are_not_stored_under_the_old_ids(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "tiny"
    shutil.copytree(fields["models"][0], model)
    runner = Runner(Study.build(fields | {"models": [str(model)]}), tmp_path / "run", device="cpu")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    result = runner.execute()
    assert not result.computed
    assert {"changed after the study was planned" in failure.reason for failure in result.failures} == {True}


def test_out_of_memory_at_a_random_batch(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A batch that does not fit is halved: the cell completes, with the same numbers up to rounding."""
    plain = run_study(fields, tmp_path / "plain", device="cpu").run.rows().to_pandas()
    rng, forward = np.random.default_rng(0), Model.forward
    starved = 0

    def starving(model: Model, tokens: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        nonlocal starved
        if len(tokens) > 1 and rng.random() < 0.3:
            starved += 1
            raise torch.OutOfMemoryError("out of memory")
        return forward(model, tokens, *rest, **options)

    monkeypatch.setattr(Model, "forward", starving)
    result = run_study(fields, tmp_path / "starved", device="cpu")
    assert result.complete, result.failures
    assert starved
    mine = result.run.rows().to_pandas()
    same = ~plain.metric.str.startswith("snr")  # the noise itself depends on the batches
    np.testing.assert_allclose(plain[same].value, mine[same].value, rtol=1e-3, atol=1e-5)


def test_a_full_disk(fields: dict[str, Any], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can be mounted by root alone")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.decode()}")
    try:
        ballast = small / "ballast"
        ballast.write_bytes(b"x" * 160_000)
        result = run_study(fields | {"seeds": 5}, small / "run", device="cpu")
        assert result.failures
        reasons = {failure.reason for failure in result.failures}
        assert any(reason.startswith("the disk that holds the run folder is full") for reason in reasons), reasons
        assert all("full" in reason for reason in reasons)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        again = run_study(fields | {"seeds": 5}, small / "run", device="cpu")
        assert again.complete, again.failures
        assert len(again.run.stored()) == len(again.cells)
        assert again.run.unreadable(again.run.stored()) == {}
    finally:
        subprocess.run(["umount", str(small)], check=False)


def test_ctrl_c_leaves_a_run_that_resumes(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run_study(fields, tmp_path / "whole", device="cpu").run
    gd, calls = LEARNERS["gd"].learn, []

    def interrupted(self: Learner[Any], bench: Any, lr: float | None, options: Options) -> Learned:
        calls.append(bench.lesson.episode.seed)
        if calls[-1] == 1:
            raise KeyboardInterrupt
        return gd(self, bench, lr, options)

    with monkeypatch.context() as patch:
        patch.setattr(LEARNERS["gd"], "learn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_study(fields, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run/claims").exists()
    result = run_study(fields, tmp_path / "run", device="cpu")
    assert len(result.computed) == 3  # gd of seed 1, and zero-shot of both: short work comes last
    assert repr(result.run.rows().to_pydict()) == repr(whole.rows().to_pydict())


def test_a_sitting_that_is_over_leaves_nothing_in_memory(tmp_path: Path) -> None:
    """Without waiting for Python to look for circles: results know their bench, and it keeps them."""
    study = {
        "models": ["embedded"],
        "tasks": ["embedded-sst2"],
        "variants": ["trained"],
        "learners": ["gd", "lcgd", "gd-linearized", "dilution", "task-vector", "kernel"],
        "controls": ["random-labels", "random-update", "redraw"],
        "seeds": 1,
        "shots": 2,
        "queries": 3,
        "lr": 0.1,
        "dtype": "float32",
    }

    def living() -> int:
        return sum(isinstance(thing, Bench | Learned) for thing in gc.get_objects())

    gc.collect()
    before = living()
    gc.disable()
    try:
        assert run_study(study, tmp_path / "run").complete
        assert living() == before
    finally:
        gc.enable()


SETUP = WorkerSetup("nowhere", Study.build({"tasks": ["embedded-sst2"]}), device="cpu", offline=True)


def place(variant: Any, seed: int | None) -> ModelSpec:
    return ModelSpec("embedded", model_digest("embedded", True, None), variant, seed)


ALL = [place("trained", None), *(place(variant, seed) for seed in (0, 1) for variant in DRAWN)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that weights were drawn from."""
    seeds: list[int] = []

    class Counting(drawing.Draws):
        def __init__(self) -> None:
            super().__init__(self._count)

        def _count(self, hf: Any, seed: int) -> drawing.Weights:
            seeds.append(seed)
            return drawing.drawn(hf, seed)

    monkeypatch.setattr(drawing, "Draws", Counting)
    return seeds


@pytest.mark.parametrize("ahead", [ALL, []], ids=["the work to come is known", "it is not"])
def test_the_variants_of_a_seed_share_a_draw(ahead: list[ModelSpec], drawn: list[int]) -> None:
    loaded = LoadedModel(SETUP, ahead)
    for at in ALL:
        own, so_far = dict(loaded.at(at).hf.named_parameters()), len(drawn)
        alone = Model.load("embedded", device="cpu", variant=at.variant, init_seed=at.init_seed or 0)
        assert all(torch.equal(own[name], other) for name, other in alone.hf.named_parameters())
        del drawn[so_far:]  # what was drawn for the model alone
        assert loaded.at(at) is loaded.at(at)
    assert drawn == [0, 1]


def test_on_an_accelerator_the_next_draw_is_begun_at_once(drawn: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedModel(SETUP, ALL)
    monkeypatch.setattr(Model, "device", torch.device("meta"))  # anything but a CPU
    loaded.at(ALL[0])
    assert loaded._draws is not None
    loaded._draws.settle()
    assert drawn == [0]


def test_files_that_changed_after_the_plan_are_refused() -> None:
    with pytest.raises(CellError, match="changed after the study was planned"):
        LoadedModel(SETUP).at(ModelSpec("embedded", "another hash"))
