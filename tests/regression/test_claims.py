"""What the papers claim."""

from dualscope.regression import EXPERIMENTS
from dualscope.regression.claims import claims


def test_every_experiment_has_a_claim() -> None:
    assert {*claims()} == {*EXPERIMENTS}
