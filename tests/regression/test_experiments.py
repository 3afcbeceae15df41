"""Every experiment runs, small; identities are exact; what a tiny budget can show is shown."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.core.rows import EXPERIMENT_COLUMNS
from dualscope.regression import EXPERIMENTS, Ahn, Results, load, save
from dualscope.regression.architectures.constructed import gd_transformer, repeat
from dualscope.regression.architectures.transformer import Scores, Transformer, copies_of
from dualscope.regression.baselines import (
    Spectrum,
    alignment,
    half_mse,
    implied_weights,
    one_step_gd,
    ridge,
    ridge_dynamics,
)
from dualscope.regression.experiments.ahn import learned, relative_error
from dualscope.regression.experiments.akyurek import BAYES, Akyurek
from dualscope.regression.experiments.cheng import ATTENTION, Cheng, predictions
from dualscope.regression.experiments.mesa import guesses
from dualscope.regression.experiments.vonoswald import VonOswald
from dualscope.regression.problems import (
    GaussianProcess,
    Linear,
    LinearDynamics,
    LinearFunctions,
    draw_for,
    draw_prompts,
    generators,
)
from dualscope.regression.results import interval
from dualscope.regression.training import ALL
from dualscope.theory import functional, preconditioned

SMALL: dict[str, dict[str, Any]] = {
    "vonoswald": {"depths": (1, 2), "constructed": (2,), "steps": 4},
    "mesa": {"steps": 3},
    "akyurek": {"steps": 4},
    "cheng": {"steps": 3, "search": 50, "test": 50},
    "variants": {"steps": 3, "arms": ("normal", "augmented, g1 and g2", "negative, k = 1, beta = 0.5")},
    "garg": {"steps": 4, "test": 16, "fits": 4},
    "newton": {"steps": 4, "test": 16},
}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "momentum"])
def test_every_experiment_runs_and_is_kept(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name].quick(seeds=(0, 1), **SMALL.get(name, {}))
    done: list[int] = []
    results = experiment.run(done.append)
    assert sum(done) == experiment.work
    assert results.tables
    assert results.experiment == name
    save(results, experiment, tmp_path / "run", seconds=1.0)
    rows = load(tmp_path / "run").to_pylist()
    assert len(rows) == len(results.rows) > 0
    assert tuple(rows[0]) == EXPERIMENT_COLUMNS
    assert {row["seed"] for row in rows} >= {0, 1, None}
    assert all(math.isfinite(row["value"]) for row in rows)
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"regression.yaml", "provenance.json"}
    metrics = {row["metric"] for row in rows}
    assert all(figure.metric in metrics for figure in results.figures)


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no regression\.parquet"):
        load(tmp_path)


def test_ahns_layer_is_read_as_its_preconditioner() -> None:
    """A transformer with Ahn's P and Q predicts what preconditioned GD does, and gives A back."""
    model = Transformer(4, 1, [torch.Generator()])
    a = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.key[0, 0, 0] = model.value[0, 0, 0] = torch.eye(4)
        model.query[0, 0, 0, :3, :3] = -a
        model.output[0, 0, 0, 3, 3] = 1
        batch = Linear(d=3, n=5, inputs="normal").draw(4, torch.Generator().manual_seed(2))
        found = model.predict(repeat(batch, 1).tokens)[0]
    for task in range(4):
        moved = preconditioned.preconditioned_gd(batch.x[task], batch.y[task], [a])
        torch.testing.assert_close(found[task], moved @ batch.query[task], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learned(model)[0], a)
    assert relative_error(learned(model), a).item() == 0


def test_ahn_learns_the_preconditioner_roughly() -> None:
    results = Ahn(seeds=(0,), steps=250, batch=256, scales=(0.5, 1.0)).run()
    (error,) = [row["value"] for row in results.rows if row["metric"] == "relative error" and row["seed"] is None]
    assert error < 0.3


@pytest.mark.parametrize("name", ATTENTION)
def test_chengs_layers_are_functional_gd(name: Scores) -> None:
    batch = GaussianProcess("exp", n=6).draw(3, torch.Generator().manual_seed(0))
    found = predictions(batch, name, 4, 2.0, torch.tensor([0.05, 9.0]))[-1][0]
    for task in range(3):
        x, y, query = batch.x[task], batch.y[task], batch.query[task]
        expected = functional.functional_gd(x, y, query[None], name, 0.05, 4, 2.0)[0]
        torch.testing.assert_close(found[task], expected, rtol=1e-4, atol=1e-5)


def test_cheng_orders_the_kernels() -> None:
    results = Cheng(seeds=(0, 1), steps=14, search=200, test=400, depths=(7,)).run()
    assert all(check.holds for check in results.checks), results.checks


def test_mesas_one_step_is_a_causal_layer() -> None:
    """One head whose keys are previous states and whose values are present ones is one GD step, at every t."""
    d, eta = 3, 0.7
    model = Transformer(3 * d, 1, [torch.Generator()], causal=True)
    now, before = slice(d, 2 * d), slice(2 * d, 3 * d)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.key[0, 0, 0, :d, before] = model.query[0, 0, 0, :d, now] = torch.eye(d)
        model.value[0, 0, 0, :d, now], model.output[0, 0, 0, :d, :d] = torch.eye(d), eta * torch.eye(d)
        sequences = LinearDynamics(d, length=8).draw(4, torch.Generator().manual_seed(0))[None]
        torch.testing.assert_close(guesses(model, sequences), one_step_gd(sequences, eta), rtol=1e-4, atol=1e-4)


def test_least_squares_finds_the_dynamics() -> None:
    sequences = LinearDynamics(d=3, length=12, noise=0.0).draw(4, torch.Generator().manual_seed(0))
    error = (ridge_dynamics(sequences, 1e-6) - sequences[:, 1:]).norm(dim=-1)
    assert (error[:, :3] > 1e-2).any()
    assert (error[:, 8:] < 1e-2).all()


def test_implied_weights_of_a_linear_learner_are_its_own() -> None:
    context = draw_prompts(LinearFunctions(3), 5, 8, generators([0, 1]))
    wanted = Spectrum.of(context.x, context.y).weights(ridge(0.3))[..., -1, :]
    found = implied_weights(lambda p: Spectrum.of(p.x, p.y).predict(ridge(0.3))[..., -1], context, 12)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_arms_share_their_start_and_their_prompts() -> None:
    arms = ("normal", "augmented, g1 and g2")
    results = EXPERIMENTS["variants"].quick(steps=1, arms=arms).run()
    start = {arm: results.curves(arm, ALL)[0][0] for arm in arms}
    assert len(set(start.values())) == 1  # adapters begin as nothing


def test_an_interval_needs_two_seeds() -> None:
    mean, low, high = interval([1.0])
    assert mean == 1
    assert math.isnan(low)
    assert math.isnan(high)
    results = Results("x")
    _, low, high = results.over_seeds("s", "m", [1.0, 3.0], seeds=[0, 1])
    assert low < 2 < high
    assert (results.rows[-1]["low"], results.rows[-1]["high"]) == (low, high)


@pytest.mark.parametrize("scale", [4.0, -0.5])
def test_half_way_between_gd_and_gd_is_gd(scale: float) -> None:
    """K^T Q times any number and P V divided by it are the same layer, also for the one half-way."""
    experiment = VonOswald(seeds=(0, 1))
    gd = gd_transformer([2.0], 1, experiment.d, experiment.n)
    scaled = copies_of(gd, 2)
    with torch.no_grad():
        scaled.query.mul_(scale)
        scaled.output.div_(scale)
    test = draw_for(experiment.problem, 50, generators((0, 1), 2))
    results = Results("vonoswald")
    experiment._interpolated(results, "one layer", scaled, gd, test)
    expected = half_mse(copies_of(gd, 2).predict, test).tolist()
    for curve, value in zip(results.curves("one layer", "loss between").values(), expected, strict=True):
        assert list(curve.values()) == pytest.approx([value] * len(curve), rel=1e-5)


def test_bayes_ridge_is_the_posterior_mean() -> None:
    noise, d = 0.4, 3
    prompts = LinearFunctions(d, noise).draw(1, 6, torch.Generator().manual_seed(0))
    x, y = prompts.x[0, :5].double(), prompts.y[0, :5].double()
    # w and y are jointly Gaussian: E[w | y] = Cov(w, y) Cov(y)^-1 y, and a weight has variance 1 / d
    expected = x.T / d @ torch.linalg.inv(x @ x.T / d + noise**2 * torch.eye(5).double()) @ y
    bayes = Akyurek(d=d).filters(noise)[BAYES]
    torch.testing.assert_close(Spectrum.of(prompts.x[0], prompts.y[0]).weights(bayes)[-1], expected)


def test_alignment_compares_two_different_learners() -> None:
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])
    batch = draw_for(Linear(d=2, n=3), 20, generators((0,)))
    found = alignment(lambda tokens: tokens[..., -1, :-1] @ a, lambda tokens: tokens[..., -1, :-1] @ b, batch)
    assert found["sensitivity cosine"].item() == pytest.approx(0.6)
    assert found["sensitivity distance"].item() == pytest.approx(4)
    assert found["prediction difference"].item() == pytest.approx(4 * batch.query[..., 1].abs().mean().item())
    assert found["loss"].item() == pytest.approx(0.5 * (batch.query @ a - batch.target).square().mean().item())
