"""What the papers claim."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from benchmarks.regression_claims import claims_table, minutes_table, trainings_table
from benchmarks.regression_ship import QUICK, experiment_of, quick_point, settings_of
from typer.testing import CliRunner

from dualscope.cli import app
from dualscope.regression import EXPERIMENTS, Results, load
from dualscope.regression.baselines import ONE_STEP, RIDGE, Spectrum, closed_forms, ridge
from dualscope.regression.emergence import LOSS_WITHIN, falls
from dualscope.regression.experiments.akyurek import BAYES, LEAST_SQUARES, Akyurek
from dualscope.regression.experiments.cheng import Cheng
from dualscope.regression.experiments.garg import NEAREST, simple_learners
from dualscope.regression.experiments.momentum import MomentumLanguageModels
from dualscope.regression.experiments.vonoswald import VonOswald
from dualscope.regression.problems import (
    GaussianProcess,
    LinearDynamics,
    LinearFunctions,
    bayes,
    draw_prompts,
    generators,
)
from dualscope.regression.results_folder import PROVENANCE, SETTINGS, SHIPPED, claims, shipped_runs
from dualscope.regression.training import ALL
from dualscope.theory.preconditioned import one_layer_risk, optimal_preconditioner

DOCS = Path(__file__).parents[2] / "docs"


def test_every_experiment_has_a_claim() -> None:
    assert {*claims()} == {*EXPERIMENTS}


def shipped(name: str) -> tuple[dict[str, Any], Results]:
    """The settings and the rows, of the full size."""
    return stored(name, shipped_runs()[name])


def stored(name: str, place: Path) -> tuple[dict[str, Any], Results]:
    return yaml.safe_load((place / SETTINGS).read_text()), Results(name, load(place).to_pylist())


def curve(results: Results, series: str, metric: str, panel: str, seed: int | None = None) -> dict[float, float]:
    return {
        row["x"]: row["value"]
        for row in results.rows
        if (row["series"], row["metric"], row["panel"], row["seed"]) == (series, metric, panel, seed)
        and row["x"] is not None
    }


def test_shipped_results_are_small_and_say_where_they_are_from() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 2_000_000
    for name, place in shipped_runs().items():
        told = json.loads((place / PROVENANCE).read_text())
        settings, results = stored(name, place)
        assert told["size"] == "full size"
        assert told["machine"], name
        assert told["date"], name
        assert not told["quick"]
        assert told["seconds"] <= 600, name
        assert told["claim"] == claims()[name]
        assert settings["experiment"] == name
        assert {row["seed"] for row in results.rows} <= {None, *settings["seeds"]}
        seeds = {seed for part in told["parts"] for seed in part["settings"]["seeds"]}
        assert settings["seeds"] == sorted(seeds)


def test_settings_of_the_whole_are_those_of_its_parts() -> None:
    first = {"d": 8, "rate": 0.1, "steps": 6, "minutes": 1.0, "noises": [0.0, 0.5], "seeds": [0, 1]}
    second = {"d": 8, "rate": 0.2, "steps": 9, "minutes": 2.0, "noises": [0.25], "seeds": [0, 1]}
    assert settings_of([first, second]) == {"d": 8, "steps": 9, "noises": (0.0, 0.5, 0.25), "seeds": (0, 1)}


def test_seeds_of_the_whole_are_in_order() -> None:
    assert settings_of([{"seeds": [7], "steps": 2}, {"seeds": [0, 1], "steps": 1}])["seeds"] == (0, 1, 7)


def test_a_setting_that_is_newer_than_the_parts_is_as_it_was_then() -> None:
    known = MomentumLanguageModels.full(steps=9).model_dump(mode="json")
    assert experiment_of(MomentumLanguageModels, [known]) == MomentumLanguageModels.full(steps=9)
    older = {name: value for name, value in known.items() if name != "rate"}
    assert MomentumLanguageModels.full().rate != 1e-3
    assert experiment_of(MomentumLanguageModels, [older]) == MomentumLanguageModels.full(steps=9, rate=1e-3)


def test_the_docs_show_the_shipped_tables() -> None:
    text = (DOCS / "data" / "regression.md").read_text()
    assert claims_table() in text
    assert minutes_table() in text
    assert trainings_table() in text


def test_the_report_shows_them(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", "--shipped", "regression", "--out", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert all(f"{name}, full size: what the theory says" in text for name in shipped_runs())


def test_least_squares_without_noise_errs_by_the_dimensions_not_yet_seen() -> None:
    """E (guess - target)^2 = 1 - k / d, and 0 from k = d on: of all prompts, whatever machine drew them."""
    settings, results = shipped("garg")
    found = curve(results, "least squares", "squared error", "linear")
    for k, error in found.items():
        assert error == pytest.approx(max(0.0, 1 - k / settings["d"]), abs=0.06)
    settings, results = shipped("akyurek")
    for k, error in curve(results, "least squares", "squared error", "8 layers, width 256, noise 0").items():
        assert error == pytest.approx(max(0.0, 1 - k / settings["d"]), abs=0.06)
    settings, results = shipped("newton")
    d, most = settings["d"], settings["points"] - 1
    expected = sum(max(0.0, 1 - k / d) for k in range(1, most + 1)) / most
    (error,) = curve(results, "least squares", "squared error by layer", "condition 1").values()
    assert error == pytest.approx(expected, abs=0.02)


def test_nearest_neighbours_curve_is_found_again() -> None:
    settings, results = shipped("garg")
    prompts = draw_prompts(LinearFunctions(settings["d"]), 400, settings["points"], generators([7]))
    again = (simple_learners(prompts, "linear")[NEAREST] - prompts.target).square().mean((0, 1))
    found = curve(results, NEAREST, "squared error", "linear")
    for k in range(1, settings["points"]):
        assert found[k] == pytest.approx(float(again[k]), rel=0.35), k
    means = [sum(found.values()) / len(found), float(again.mean())]
    assert means[0] == pytest.approx(means[1], rel=0.06)


@pytest.mark.parametrize("noise", [0.25, 0.5])
def test_bayes_curves_are_found_again(noise: float) -> None:
    settings, results = shipped("akyurek")
    prompts = draw_prompts(LinearFunctions(settings["d"], noise), 3000, settings["points"], generators([7]))
    kept = Akyurek(d=settings["d"]).filters(noise)[BAYES]
    again = (Spectrum.of(prompts.x, prompts.y).predict(kept) - prompts.target).square().mean((0, 1))
    found = curve(results, BAYES, "squared error", f"8 layers, width 256, noise {noise:g}")
    assert set(found) == set(range(1, settings["points"]))
    for k, error in found.items():
        assert error == pytest.approx(float(again[int(k)]), rel=0.15), k


@pytest.mark.parametrize("name", ["akyurek", "newton"])
def test_every_training_had_come_to_rest_by_its_loss(name: str) -> None:
    """Also of the depths and widths that no check judges: all had their planned steps, and none ended by the clock."""
    settings, results = shipped(name)
    trained = [row for row in results.rows if row["metric"] == ALL and row["seed"] is not None]
    arms = {(row["panel"], row["series"]) for row in trained}
    assert len(arms) == EXPERIMENTS[name].full().trainings
    for panel, series in arms:
        seeds = [curve(results, series, ALL, panel, seed) for seed in settings["seeds"]]
        watched = {int(step): [of[step] for of in seeds] for step in seeds[0]}
        assert max(watched) == settings["steps"], series
        assert max(falls(watched)) <= LOSS_WITHIN, series


def test_the_loss_without_noise_could_fall_by_no_more_than_the_docs_say() -> None:
    settings, results = shipped("akyurek")
    panel, found = "8 layers, width 256, noise 0", dict[str, list[float]]()
    for name in ("trained", LEAST_SQUARES):
        found[name] = [
            sum(curve(results, name, "squared error", panel, seed=seed).values()) for seed in settings["seeds"]
        ]
    left = [1 - least / mine for mine, least in zip(*found.values(), strict=True)]
    page = " ".join((DOCS / "regression.md").read_text().split())
    said = re.search(r"could fall by at most (\S+) % of itself: least squares has no less", page)
    assert said
    assert f"{100 * max(left):.1f}" == said[1]


def test_mesas_closed_forms_are_found_again() -> None:
    settings, results = shipped("mesa")
    dynamics = LinearDynamics(settings["d"], settings["length"], settings["noise"])
    test = dynamics.draw_for(settings["test"], generators([1], 2))
    (search,) = (dynamics.draw(300, g) for g in generators([0], 3))
    forms = closed_forms(search, (1,))
    for name in (ONE_STEP, RIDGE):
        again = (forms[name](test) - test[:, :, 1:]).square().sum(-1).mean(1)[0]
        found = curve(results, name, "squared error", "time", seed=1)
        torch.testing.assert_close(torch.tensor(list(found.values())), again, rtol=1e-3, atol=1e-5)


def test_ahns_optimum_is_found_again() -> None:
    settings, results = shipped("ahn")
    covariance = torch.diag(torch.tensor(settings["scales"]))
    best = optimal_preconditioner(covariance, settings["n"])
    found = curve(results, "A*", "diagonal entry", "diagonal")
    assert list(found.values()) == pytest.approx(best.diagonal().tolist(), rel=1e-6)
    (risk,) = [row["value"] for row in results.rows if (row["series"], row["metric"]) == ("A*", "risk")]
    assert risk == pytest.approx(float(one_layer_risk(best, covariance, settings["n"])), rel=1e-6)


def test_vonoswalds_constructions_are_found_again() -> None:
    _, results = shipped("vonoswald")
    again = Results("vonoswald")
    VonOswald(depths=(1,), constructed=(1, 2))._rivals(again)
    for row in again.rows:
        found = curve(results, row["series"], "loss", "depth")
        assert row["x"] is not None
        assert found[row["x"]] == pytest.approx(row["value"], rel=1e-3)


def test_chengs_bayes_is_found_again() -> None:
    settings, results = shipped("cheng")
    experiment = Cheng.full()
    for kernel in ("linear", "exp"):
        process = GaussianProcess(kernel, settings["d"], settings["n"])
        (draws,) = generators([0], 2)
        test, covariance = process.draw_with_gram(settings["test"], draws)
        again = float((bayes(test, covariance) - test.target).square().mean())
        found = curve(results, "Bayes", "squared error", f"{kernel} data", seed=0)
        assert found[experiment.depths[-1]] == pytest.approx(again, rel=1e-3, abs=1e-9)


def test_ridge_without_penalty_is_not_bayes() -> None:
    """That the Bayes curve is told from its neighbours: the tolerance above would not hide another penalty."""
    settings, results = shipped("akyurek")
    prompts = draw_prompts(LinearFunctions(settings["d"], 0.5), 3000, settings["points"], generators([7]))
    other = Spectrum.of(prompts.x, prompts.y).predict(ridge(0.01 * settings["d"]))
    found = curve(results, BAYES, "squared error", "8 layers, width 256, noise 0.5")
    error = float((other - prompts.target).square().mean((0, 1))[settings["d"]])
    assert error != pytest.approx(found[settings["d"]], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_a_quick_point_is_found_again(name: str) -> None:
    wanted = json.loads(QUICK.read_text())[name]
    found = dict(quick_point(EXPERIMENTS[name].quick().run().rows))
    assert {key: found[key] for key in wanted if key != "value"} == {k: v for k, v in wanted.items() if k != "value"}
    assert found["value"] == pytest.approx(wanted["value"], rel=0.02)
