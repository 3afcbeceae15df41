"""Every registered identity, over seeds; that the check can fail; and what ``dualscope theory`` says."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.theory import IDENTITIES, AtMost, TwoSides, chosen, judge
from dualscope.theory.identity import TOPICS, Draw

STATED = {
    "features-taylor",
    "features-random",
    "features-random-rate",
    "softmax-dual-random",
    "bound-rate",
    "random-quarter-drawn",
}
GRAM = (
    "features",
    "softmax-dual",
    "attention-variants",
    "representation",
    "bound",
)  # topics of the Gram map's eigenvectors


@pytest.mark.parametrize("name", list(IDENTITIES))
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 7))])
def test_holds_in_both_precisions(name: str, seed: int) -> None:
    verdict = judge(IDENTITIES[name], seed)
    assert verdict.passed, (verdict.error, verdict.error32)


def test_tolerances_are_those_promised() -> None:
    """float64: 1e-10, 1e-9 where the Gram map's eigenvectors enter; only approximations and rates have their own."""
    for name in IDENTITIES:
        one = IDENTITIES[name]
        if one.kind in ("approximation", "statistical"):
            assert name in STATED
        elif one.kind == "inequality":
            assert one.tolerance == 0
        else:
            assert one.tolerance <= 1e-9
            assert one.tolerance <= 1e-10 or one.topic in GRAM


def test_both_sides_are_really_computed() -> None:
    """Sides that are the same tensor would agree whatever is wrong."""
    for name in IDENTITIES:
        sides = IDENTITIES[name].sides(3)
        assert sides.left is not sides.right
        assert sides.left.data_ptr() != sides.right.data_ptr()
        assert bool(sides.left.isfinite().all())


def test_nan_never_passes() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    for sides in (TwoSides(nan, torch.ones(2)), AtMost(nan, torch.ones(2)), AtMost(torch.ones(2), nan)):

        def found(_: Draw, sides: TwoSides = sides) -> TwoSides:
            return sides

        broken = replace(IDENTITIES["gd-one-step"], check=found, tolerance=1e9)
        assert not judge(broken).passed


def test_sides_of_unlike_shape_are_refused() -> None:
    with pytest.raises(InputError, match="differ in shape"):
        TwoSides(torch.ones(2), torch.ones(1))  # broadcasting would have hidden it


def test_topics_and_names_choose() -> None:
    assert {one.topic for one in chosen(("linear-attention-step",))} == {"linear-attention-step"}
    assert {one.name for one in chosen(("gd-momentum", "softmax-split"))} == {"gd-momentum", "softmax-split"}
    assert len(chosen()) == len(IDENTITIES)
    assert tuple(dict.fromkeys(one.topic for one in chosen())) == TOPICS


def test_command_table(cli: Callable[..., Any]) -> None:
    result = cli("theory", "--only", "linear-attention-step", "--only", "icl-dual-form")
    assert result.code == 0
    assert "all 4 hold" in result.out
    assert "vonoswald-gd++" in result.out


def test_command_json(cli: Callable[..., Any]) -> None:
    result = cli("theory", "--only", "linear-layer", "--seed", 5, "--json")
    assert result.code == 0
    rows = json.loads(result.out)
    assert all(row["passed"] and row["seed"] == 5 for row in rows)
    assert all(row["float64"]["error"] <= 1e-10 < row["float32"]["error"] for row in rows)


def test_command_says_what_is_near(cli: Callable[..., Any]) -> None:
    result = cli("theory", "--only", "vonoswlad")
    assert result.code == 2
    assert "did you mean vonoswald" in result.err
    assert "Traceback" not in result.err


def test_a_broken_identity_fails_the_command(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """GD's step with the wrong sign: the construction no longer is that step."""
    from dualscope.theory import linear_attention_step as vonoswald

    right = vonoswald.gd_steps
    monkeypatch.setattr(vonoswald, "gd_steps", lambda x, y, start, eta, steps: right(x, y, start, -eta, steps))
    result = cli("theory", "--only", "linear-attention-step", "--json")
    assert result.code == 1
    passed = {row["name"]: row["passed"] for row in json.loads(result.out)}
    assert passed == {"vonoswald-one-layer": False, "vonoswald-k-layers": False, "vonoswald-gd++": True}
    table = cli("theory", "--only", "linear-attention-step")
    assert table.code == 1
    assert "2 of 3 failed: vonoswald-one-layer, vonoswald-k-layers" in table.out


BREAKS = [
    ("linear_layer", "linear_attention", "gd-full-batch"),
    ("linear_layer", "descend", "gd-momentum-decay"),
    ("icl_dual", "dw_icl", "icl-dual-form"),
    ("icl_dual", "dw_finetuned", "finetuning-dual-form"),
    ("icl_dual", "demonstration_mass", "softmax-split"),
    ("linear_attention_step", "gd_plus_plus", "vonoswald-gd++"),
    ("features", "exp_kernel", "features-gram"),
    ("softmax_dual", "feature_attention", "softmax-dual-random-exact"),
    ("softmax_dual", "token_steps", "softmax-dual-steps"),
    ("attention_variants", "regularized_output", "variant-regularized"),
    ("attention_variants", "negative_output", "variant-negative"),
    ("representation", "attention_of", "loss-contrastive"),
    ("representation", "negative_output", "loss-contrastive-negative"),
    ("likeness", "demonstration_mass", "dilution"),
    ("likeness", "normalised_likeness", "random-quarter"),
    ("bound", "worst_weight", "bound-gap"),
    ("preconditioned", "preconditioned_gd", "preconditioned-gd"),
    ("preconditioned", "optimal_preconditioner", "preconditioned-optimum"),
    ("functional", "functional_gd", "functional-gd-softmax"),
    ("functional", "bayes", "functional-gd-limit"),
    ("closed_forms", "posterior_mean", "closed-ridge-bayes"),
    ("closed_forms", "gd_closed_form", "closed-gd"),
    ("closed_forms", "implied_weights", "closed-implied-weights"),
]


@pytest.mark.parametrize(("module", "function", "name"), BREAKS)
def test_a_part_in_a_million_is_noticed(module: str, function: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two computations off by a factor of 1.000001: float64 must tell."""
    where = importlib.import_module(f"dualscope.theory.{module}")
    right = getattr(where, function)
    monkeypatch.setattr(where, function, lambda *args, **options: 1.000001 * right(*args, **options))
    assert IDENTITIES[name].sides().error > IDENTITIES[name].tolerance
    assert not judge(IDENTITIES[name]).passed


def test_a_bound_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dualscope.theory import bound

    monkeypatch.setattr(bound.Bound, "total", property(lambda found: 1e-3 * found.complexity))
    assert not judge(IDENTITIES["bound-holds"]).passed
