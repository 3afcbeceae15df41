"""The benchmarks' made-up lessons are lessons: they have what learners ask of a real one. Jobs leave nothing out."""

import gzip
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks import draws, lessons
from benchmarks.regression_claims import PARTED
from benchmarks.regression_full import JOBS, NAMES, build
from benchmarks.regression_ship import read_parts, seconds_of, settings_of
from benchmarks.shapes import VOCABULARY, random_model

from dualscope.learners import Bench
from dualscope.regression import EXPERIMENTS
from dualscope.regression.experiments.akyurek import Akyurek
from dualscope.regression.experiments.variants import ARMS


@pytest.mark.parametrize("name", ["gd", "lcgd"])
def test_a_made_up_lesson_is_learned(name: str) -> None:
    bench = Bench(random_model("tiny", "float32", "cpu"), lessons.real_lengths("mr", 2, 3, VOCABULARY))
    assert not bench.learned(name, 0.003).trace.attn_out.equal(bench.zero_shot.attn_out)


@pytest.mark.parametrize("plant", [False, True])
def test_draws_are_measured_at_once_and_alone(plant: bool) -> None:
    model = random_model("tiny", "float32", "cpu")
    lesson = draws.balanced(lessons.real_lengths("mr", 8, 3, VOCABULARY))
    found = draws.measured(model, lesson, "gd", 8, repeats=0, plant=plant, all_alone=True)
    assert list(found) == ["one draw", "at once", "one by one"]
    # As many draws are read as there are, whichever way.
    assert model.counters["zero-shot reads"] == 1 + 1 + 8 + 8
    assert model.counters["context reads"] == plant * (1 + 8 + 8)


def test_every_kind_of_attention_is_in_one_job() -> None:
    jobs = [build(job, 9.0, tiny=True, compiled=False) for job in JOBS if job.experiment == "variants"]
    assert sorted(arm for job in jobs for arm in job.arms) == sorted(ARMS)


def test_every_size_and_noise_is_in_one_job() -> None:
    full = Akyurek.full()
    jobs = [full.model_copy(update=job.settings) for job in JOBS if job.experiment == "akyurek"]
    assert sorted(str(arm) for job in jobs for arm in job.arms) == sorted(map(str, full.arms))


@pytest.mark.parametrize("name", NAMES)
def test_jobs_have_everything_that_an_experiment_is_divided_by(name: str) -> None:
    full = EXPERIMENTS[name].full().model_dump()
    jobs = [build(job, 99.0, tiny=False, compiled=False) for job in JOBS if job.experiment == name]
    whole = settings_of([job.model_dump() for job in jobs])
    for setting in (setting for setting in PARTED if setting in full):
        assert sorted(whole[setting]) == sorted(full[setting]), setting


def packed(folder: Path, jobs: Sequence[str]) -> Path:
    for number, name in enumerate(jobs):
        (folder / f"{number}.json.gz").write_bytes(gzip.compress(json.dumps({"job": name}).encode()))
    with tarfile.open(folder / "parts.tar.gz", "w:gz") as whole:
        for path in sorted(folder.glob("*.json.gz")):
            whole.add(path, path.name)
    return folder / "parts.tar.gz"


def test_parts_are_joined_as_jobs_are_ordered(tmp_path: Path) -> None:
    order = [job.name for job in JOBS]
    assert list(read_parts([packed(tmp_path, order[::-1])])) == order


def test_a_job_of_old_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    parts = packed(tmp_path, ["garg-tree", "akyurek-depth", "ahn"])
    with pytest.raises(SystemExit, match="no such jobs: akyurek-depth; "):
        read_parts([parts])
    with pytest.raises(SystemExit, match="no such jobs: momentum-0; "):
        read_parts([parts], ["akyurek-depth", "momentum-0"])
    assert list(read_parts([parts], ["akyurek-depth"])) == ["garg-tree", "ahn"]


def test_an_experiment_ends_with_its_last_job_also_where_some_had_to_wait() -> None:
    assert seconds_of([{"seconds": 9.0, "ended": 10.0}, {"seconds": 5.0, "ended": 15.5}]) == 15.5
    assert seconds_of([{"seconds": 7.0}, {"seconds": 8.0}]) == 8.0
