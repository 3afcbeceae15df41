"""Gradient descent on layers that are chosen."""

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.learners import LEARNERS, Bench
from dualscope.learners.gradient.some_layers import PARTS, GdLayers, SomeLayersOptions, layer_sets
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped

LR = 0.3


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_it_is_gd_on_these_layers_and_no_others(family: str) -> None:
    bench = tiny_bench(family, shots=2, queries=2)
    learned = bench.learned("gd-layers", LR, layers=(1, 2))
    names = [name for name in oracle.Copy(bench.model.hf).table() if name.split(".")[1] in ("1", "2")]
    assert learned.delta is not None
    assert {name.split(".")[1] for name in learned.delta} == {"1", "2"}
    assert oracle.worst(learned.delta, oracle.gd(bench.model.hf, bench.lesson, LR, names).delta()) <= 1e-9


def test_layers_and_rate_are_chosen_together_and_kept_under_controls() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=3, queries=4, task=tiny_task(n=200)))
    choice = bench.learned("gd-layers", loss="label").choice
    assert choice is not None
    tried = {(tuple(row["layers"]), row["lr"]) for row in choice.curve if "layers" in row}
    assert {layers for layers, _ in tried} == set(layer_sets(3))
    rows = [row for row in choice.curve if row.get("n") == choice.n and "layers" in row]
    best = min(rows, key=lambda row: (-row["accuracy"], row["nll"]))
    assert (choice.settings["layers"], choice.settings["lr"]) == (best["layers"], best["lr"])
    own, other = (bench.learned("gd-layers", loss="label", control=c).delta for c in (None, "random-labels"))
    assert own is not None
    assert other is not None
    assert set(own) == set(other)
    assert not torch.equal(own[next(iter(own))], other[next(iter(own))])


def test_sets_cover_all_layers_at_every_size() -> None:
    for layers in (1, 2, 5, 6, 30):
        sets = layer_sets(layers)
        assert len(set(sets)) == len(sets)
        for parts in PARTS:
            if parts <= layers:
                size = layers / parts
                assert {i for one in sets if abs(len(one) - size) < 1 for i in one} == set(range(layers))


def test_bad_input() -> None:
    bench = tiny_bench("gpt2")
    with pytest.raises(InputError, match="has layers 0 to 2"):
        bench.learned("gd-layers", LR, layers=(7,))
    options = SomeLayersOptions.model_validate({"lr": 0.1})
    assert LEARNERS["gd-layers"] is GdLayers
    assert len(GdLayers().candidates(bench.model, options)) == len(layer_sets(3))
