"""What the papers claim."""

from dualscope.regression import EXPERIMENTS
from dualscope.regression.papers_claims import claims


def test_every_experiment_has_a_claim() -> None:
    assert {*claims()} == {*EXPERIMENTS}
