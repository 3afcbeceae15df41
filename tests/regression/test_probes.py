"""Linear probes, against least squares of numpy's."""

import numpy as np
import pytest
import torch

from dualscope.regression.probes import PENALTY, fit_probe, probed, read_probe


def test_without_a_penalty_a_probe_is_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 50, 4, generator=generator, dtype=torch.float64)
    wanted = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    found = read_probe(states, fit_probe(states, wanted, 0.0))
    for copy in range(2):
        inputs = np.column_stack([states[copy].numpy(), np.ones(50)])
        weights, *_ = np.linalg.lstsq(inputs, wanted[copy].numpy())
        np.testing.assert_allclose(found[copy].numpy(), inputs @ weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("penalty", "read"), [(PENALTY, True), (1e-3, False)])
def test_a_small_penalty_reads_what_hardly_varies(penalty: float, read: bool) -> None:
    states = torch.randn(1, 400, 5, generator=torch.Generator().manual_seed(0))
    wanted = states[..., :1].clone()
    states[..., 0] *= 0.005
    share = float(probed(states, wanted, penalty))
    assert share > 0.99 if read else share < 0.1
