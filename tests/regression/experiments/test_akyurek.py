"""What akyurek's probes look for, and where."""

import numpy as np
import pytest
import torch

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size
from dualscope.regression.experiments.akyurek import Akyurek, looked_for
from dualscope.regression.problems import LinearFunctions, Prompts, draw_prompts, generators
from dualscope.regression.results import Results
from dualscope.regression.training import ALL, LONGEST, Workplace, all_states_of

SEEDS = (0, 1)


def drawn(points: int) -> Prompts:
    return draw_prompts(LinearFunctions(3, noise=0.3), 4, points, generators(SEEDS, 1, torch.device("cpu")))


def test_moments_and_weights_are_those_of_the_examples_before_the_query() -> None:
    for points in (9, 3):  # more examples than inputs, and fewer: then the weights of least norm
        prompts = drawn(points)
        found = looked_for(prompts)
        for copy in range(len(SEEDS)):
            for task in range(4):
                x = prompts.x[copy, task, :-1].double().numpy()
                y = prompts.y[copy, task, :-1].double().numpy()
                moments = sum(a * b for a, b in zip(x, y, strict=True)) / len(y)
                np.testing.assert_allclose(found["moments"][copy, task], moments, atol=1e-12)
                weights = np.linalg.lstsq(x, y, rcond=None)[0]
                np.testing.assert_allclose(found["weights"][copy, task], weights, atol=1e-9)


def test_the_answer_that_is_asked_for_is_not_among_the_states_that_probes_see() -> None:
    prompts = drawn(5)
    model = Gpt2Learner(3, 5, SEEDS, Size(2, 16, 2)).requires_grad_(False)
    states = all_states_of(model, prompts)
    assert states.shape == (3, len(SEEDS), 4, 9, 16)
    other = prompts.y.clone()
    other[..., -1] += 5
    assert torch.equal(all_states_of(model, Prompts(prompts.x, other, prompts.target)), states)
    earlier = prompts.y.clone()
    earlier[..., 0] += 5
    assert not torch.equal(all_states_of(model, Prompts(prompts.x, earlier, prompts.target)), states)


def test_a_probe_is_fitted_to_the_sums_of_its_own_copy() -> None:
    experiment = Akyurek.quick(seeds=SEEDS)
    model = Gpt2Learner(experiment.d, experiment.points, SEEDS, Size(2, 16, 2)).requires_grad_(False)
    states, wanted = experiment._drawn(model, Workplace())(4, 5)
    streams = generators(SEEDS, 7, torch.device("cpu"), 4)
    prompts = draw_prompts(LinearFunctions(experiment.d), 5, experiment.points, streams)
    by_layer = states.view(3, len(SEEDS), *states.shape[1:])
    assert torch.equal(by_layer, all_states_of(model, prompts))
    for found, sums in zip(wanted, looked_for(prompts).values(), strict=True):
        for layer in found.view(3, len(SEEDS), 5, experiment.d):
            torch.testing.assert_close(layer, sums.float())
    assert not torch.allclose(wanted[:, 0], wanted[:, 1])


def test_of_both_curves_it_is_asked_whether_they_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    Curve = dict[int, list[float]]
    asked: list[tuple[str, Curve, Curve]] = []

    def note(_: Results, name: str, losses: Curve, errors: Curve) -> None:
        asked.append((name, losses, errors))

    monkeypatch.setattr("dualscope.regression.experiments.akyurek.check_rests", note)
    experiment, results = Akyurek.quick(seeds=SEEDS, steps=4), Results("akyurek")
    arm = experiment.arms[0]
    experiment._trained(results, arm, Workplace())
    ((name, *curves),) = asked
    assert name == str(arm)
    for measure, curve in zip((ALL, LONGEST), curves, strict=True):
        rows = results.curves(name, measure, "training")
        assert {step: [rows[seed][step] for seed in SEEDS] for step in rows[0]} == curve
