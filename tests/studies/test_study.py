"""Studies as data: precedence, per-task seeds and rates, and errors that name what is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.error_rates import Spread, drawn, said_above

from dualscope.core.errors import InputError
from dualscope.studies.paths import anchored
from dualscope.studies.study import Study, preset_names, read_preset


def test_every_preset_is_a_study() -> None:
    expected = {
        "quick",
        "revisited",
        "rethinking",
        "linearized",
        "label-switching",
        "lr-sweep",
        "shots",
        "controls",
        "hypotheses",
        "revisited-published",
        "rethinking-published",
        "response",
        "kinds-of-descent",
    }
    assert set(preset_names()) == expected
    for name in preset_names():
        Study.resolve(preset=name)


def test_every_presets_learners_exist() -> None:
    from dualscope.learners import LEARNERS, identify

    for name in preset_names():
        for entry in Study.resolve(preset=name).learners:
            identify(entry.learner, entry.options, entry.control)
            assert entry.reference in LEARNERS


def test_every_presets_tasks_exist() -> None:
    from dualscope.tasks import catalog_names

    for name in preset_names():
        assert {entry.task for entry in Study.resolve(preset=name).tasks} <= set(catalog_names())


# How gd less gd under random labels varies over seeds, queries and both in the default run, task by task.
SPREADS: dict[str, Spread] = {
    "embedded-sst2": (0.026, 0.023, 0.032),
    "embedded-trec": (0.059, 0.0, 0.050),
    "embedded-agnews": (0.049, 0.016, 0.044),
}


def test_the_default_study_can_decide() -> None:
    """An effect of a tenth is found in most tasks, corrected for their number; three seeds never decide."""
    study, rng = Study.resolve(preset="quick"), np.random.default_rng(0)
    spreads = [SPREADS[entry.task] for entry in study.tasks]

    def found(seeds: int) -> float:
        tasks = ([drawn(rng, seeds, study.queries, spread, 0.1) for spread in spreads] for _ in range(300))
        return float(np.mean([said_above(parts) for parts in tasks]))

    assert found(len(study.seeds)) >= 0.65
    assert found(3) == 0.0


def test_the_papers_seeds_and_rates() -> None:
    tasks = {entry.task: entry for entry in Study.resolve(preset="revisited").tasks}
    assert tasks["sst2"].seeds == (2, 3, 4)
    assert tasks["sst2"].lr == (5e-4,)
    assert tasks["cb"].lr == (0.08,)


def test_the_published_protocols_are_the_published_ones() -> None:
    for name in ("revisited-published", "rethinking-published"):
        study = Study.resolve(preset=name)
        assert (study.read_at, study.gd_demonstrations, study.gd_order) == ("first-label", "all", "own")
        assert study.orders == "by-seed"
        assert {entry.task: entry.seeds for entry in study.tasks}["sst2"] == (2, 3, 4)
        assert {"sim_aou_random_text", "sim_aou_random_code"} <= set(study.metrics or ())
        texts = [entry.options for entry in study.learners if entry.options.get("readout") == "attention"]
        assert texts
        assert all(options["granularity"] == "token" for options in texts)
    sequential = texts[-1]
    assert (sequential["schedule"], sequential["space"]) == ("sequential", "labels")
    assert "gd-linearized" in {e.learner for e in Study.resolve(preset="label-switching").learners}


def test_options_over_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("preset: revisited\nshots: 16\nqueries: 50\n")
    study = Study.resolve({"queries": 7}, file)
    assert (study.queries, study.shots, len(study.tasks)) == (7, (16,), 6)


def test_naming_a_task_keeps_its_seeds_and_rates() -> None:
    study = Study.resolve({"tasks": ["cb"]}, preset="revisited")
    assert study.tasks[0].seeds == (3, 4, 5)
    assert study.tasks[0].lr == (0.08,)


def test_given_seeds_and_rates_win_over_a_tasks_own() -> None:
    study = Study.resolve({"seeds": "2", "lr": "0.5,1"}, preset="revisited")
    assert study.seeds == (0, 1)
    assert study.lr == (0.5, 1.0)
    assert all(entry.seeds is None and entry.lr is None for entry in study.tasks)


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("2,3,4", (2, 3, 4)), ("7,", (7,))])
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert Study.build({"tasks": "sst2", "seeds": text}).seeds == seeds


def test_a_dumped_study_reads_back_the_same(tmp_path: Path) -> None:
    for name in preset_names():
        study = Study.resolve(preset=name)
        file = tmp_path / f"{name}.yaml"
        file.write_text(study.dump())
        assert Study.resolve(file=file) == study


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shot": 4}, ["shot", "shots"]),
        ({"shots": 0}, ["shots", "at least 1"]),
        ({"seeds": 0}, ["seeds"]),
        ({"seeds": [-1]}, ["seeds"]),
        ({"seeds": [1, 1]}, ["seeds", "twice"]),
        ({"lr": "fast"}, ["lr"]),
        ({"lr": -1}, ["lr"]),
        ({"lr": [float("nan")]}, ["lr"]),
        ({"variants": "trainde"}, ["variants", "trained"]),
        ({"learners": [{"learner": "gd", "option": {}}]}, ["learners", "option"]),
        ({"models": []}, ["models"]),
        ({"queries": "many"}, ["queries", "many"]),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Study.build({"tasks": ["sst2"], **fields}, "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": "abc"}, "options: field 'seeds': expected a number of seeds (3) or the seeds"),
        ({"seeds": "1,x"}, "found '1,x'"),
        ({"lr": "foo"}, "options: field 'lr': expected auto, recorded, own, or rates above 0 such as 0.1,0.3"),
        ({"lr": "0"}, "found '0'"),
        ({"lr": "0.1,nan"}, "found '0.1,nan'"),
        ({"variants": ["trainde"]}, "options: field 'variants[0]'"),
    ],
)
def test_a_wrong_option_is_not_blamed_on_the_file(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("seeds: 2\nlr: 0.1\nvariants: trained\n")
    with pytest.raises(InputError) as caught:
        Study.resolve(options, file)
    assert words in str(caught.value)


def test_paths_are_beside_the_study_file_or_else_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "studies", tmp_path / "here"
    for folder, names in ((beside, ("mine.yaml", "data", "plug.py")), (here, ("mine.yaml", "other.yaml", "model"))):
        folder.mkdir()
        for name in names:
            (folder / name).touch() if "." in name else (folder / name).mkdir()
    monkeypatch.chdir(here)
    (beside / "study.yaml").write_text(
        "tasks: [{task: mine.yaml, seeds: 2}, other.yaml, sst2]\ndata: data\nplugins: plug.py\nmodels: [model, a/b]\n"
    )
    study = Study.resolve(file="../studies/study.yaml")
    assert [entry.task for entry in study.tasks] == [str(beside / "mine.yaml"), "other.yaml", "sst2"]
    assert (study.data, study.plugins) == (str(beside / "data"), (str(beside / "plug.py"),))
    run = Study.build(anchored(study.model_dump(), here))  # as a run records it
    assert [entry.task for entry in run.tasks] == [str(beside / "mine.yaml"), str(here / "other.yaml"), "sst2"]
    assert run.models == (str(here / "model"), "a/b")
    assert run.tasks[0].seeds == (0, 1)


def test_every_variant_of_a_model_can_be_studied() -> None:
    from dualscope.models.loading.model_variants import ABOUT

    assert Study.build({"tasks": "sst2", "variants": list(ABOUT)}).variants == tuple(ABOUT)


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="unknown preset 'quik': did you mean quick"):
        read_preset("quik")


def test_options_are_spelt_alike_everywhere() -> None:
    """In a study, beside the name or under `options`; on the command line; in `compare`."""
    from dualscope.commands.run import with_options

    beside, under, plain = (
        Study.build({"tasks": ["sst2"], "learners": [entry]})
        for entry in ({"learner": "gd", "epochs": 3}, {"learner": "gd", "options": {"epochs": 3}}, "gd")
    )
    assert beside == under == with_options(plain, ["gd.epochs=3"])
    with pytest.raises(InputError, match=r"unknown field 'learners\[0\].variant'"):
        Study.build({"tasks": ["sst2"], "learners": [{"learner": "gd", "variant": "trained"}]})
