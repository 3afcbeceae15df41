"""Maps behind a window, and of two gradient learners."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dualscope.core.spec import LearnerSpec
from dualscope.metrics.measured import compute
from tests.metrics.cases import HEADS, gradient, random_case, random_trace, result
from tests.metrics.test_attention_output import MAPS, arrays, own, values


@pytest.mark.parametrize("name", MAPS)
def test_tokens_behind_a_window_are_no_part_of_a_map(name: str) -> None:
    """In context the window lies elsewhere: what zero-shot does not see does not count, whatever stands there."""
    case, first = random_case(10), 4
    case.zero_shot.attn_scores[:, 1, :, :first] = torch.nan
    z, c, g = arrays(case, "attn_scores")
    found = values(case, name)
    for i, length in enumerate(case.trace.lengths.tolist()):
        shown = min(length, z.shape[-1] - first)
        plain = [MAPS[name](*(own(a[i, 1, h], shown) for a in (z, c, g))) for h in range(HEADS)]
        np.testing.assert_allclose(found[i, 1], plain, atol=1e-10)


def test_alpha_is_of_two_gradient_learners_and_of_no_control() -> None:
    other = random_trace(70)
    others = (result(gradient(other), "lcgd"), result(gradient(random_trace(71)), LearnerSpec("gd", "random-labels")))
    case = replace(random_case(11), others=others)
    assert [v.reference for v in compute(case, ["alpha"])] == [LearnerSpec("lcgd")]
    z, _, g = arrays(case, "attn_scores")
    theirs = other.attn_scores.double().numpy()
    length = int(case.trace.lengths[5])
    parts = (own(a[5, 1, 0], length) for a in (z, theirs, g))
    assert values(case, "alpha")[5, 1, 0] == pytest.approx(MAPS["sim_am_delta"](*parts))
