"""What mesa's probes look for, at which times, and what is said of the order in which layers have it."""

import pytest
import torch

from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.baselines import closed_forms
from dualscope.regression.experiments.mesa import ANSWER, PRECONDITIONED, Mesa
from dualscope.regression.problems import LinearDynamics, generators
from dualscope.regression.results import Results

SEEDS = (0, 1)


def judged(early: list[list[float]], late: list[list[float]]) -> list[bool]:
    """Shares that probes read, by seed and layer."""
    results = Results("mesa")
    for sought, seeds in ((PRECONDITIONED, early), (ANSWER, late)):
        for layer, values in enumerate(zip(*seeds, strict=True)):
            results.over_seeds(sought, "probed", values, SEEDS, panel="model", x_name="layer", x=layer)
    Mesa().conclude(results)
    return [check.holds for check in results.checks]


@pytest.mark.parametrize(
    ("early", "holds"), [([0.5, 0.9, 0.6], True), ([0.9, 0.5, 0.6], False), ([0.5, 0.6, 0.9], False)]
)
def test_layers_precondition_before_they_answer_in_every_seed(early: list[float], holds: bool) -> None:
    late = [0.0, 0.3, 1.0]
    assert judged([early, early], [late, late]) == [holds]
    assert judged([[0.5, 0.9, 0.6], early], [late, late]) == [holds]


def test_nothing_is_said_of_the_order_in_one_layer() -> None:
    assert judged([[0.5, 0.9]] * 2, [[0.0, 1.0]] * 2) == []


def test_probes_see_the_tokens_of_the_time_that_is_asked_about() -> None:
    experiment = Mesa.quick(seeds=SEEDS, d=3, length=12)
    dynamics = LinearDynamics(3, 12, experiment.noise)
    model = Transformer(9, 1, generators(SEEDS, 10), causal=True, heads=1, scale=0.0)
    (search,) = (dynamics.draw(50, g) for g in generators([0], 3))
    results = Results("mesa")
    experiment._probe(results, "tokens", model.requires_grad_(False), dynamics, closed_forms(search, (1,)))

    def share(sought: str) -> torch.Tensor:
        return torch.tensor([curve[0] for curve in results.curves(sought, "probed", "tokens").values()])

    assert (share("state before") > 0.999).all()  # it stands in the token
    assert (share(PRECONDITIONED) > 0.6).all()  # so does the state, of which it is most
    assert (share(ANSWER) < 0.5).all()  # that takes what was before, too
