"""The dual form of an update, and what a layer's own change does."""

from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.descent.dual_records import KeyOrValue
from dualscope.learners import Delta, Dual, direct_attn_out
from tests.learners import oracle
from tests.learners.setting import tiny_bench

LR = 0.3
ROLES: dict[str, KeyOrValue] = {"key": "key", "value": "value"}
WANT = frozenset({"dual", "layer_inputs"})


@pytest.mark.parametrize("family", [*oracle.FAMILIES, "gpt_neox", "phi3"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gd", {}),
        ("gd", {"full_batch": True, "epochs": 2}),
        ("gd", {"layers": (1,), "loss": "label"}),
        ("gd", {"parameters": "k"}),
        ("lcgd", {"layers": (0, 2), "parameters": "v"}),
        ("lcgd", {"schedule": "sequential", "granularity": "token"}),
        ("lcgd-matched", {"order": 1}),
        ("lcgd-clipped", {"threshold": 1.0}),
        ("gd-linearized", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "default",
)
def test_primal_is_dual(family: str, name: str, options: dict[str, Any]) -> None:
    bench = tiny_bench(family, want=WANT, shots=3, queries=3)
    learned = bench.learned(name, LR, **options)
    dual = Dual.of(learned.log)
    assert learned.delta is not None
    for key, change in learned.delta.items():
        _, number, name, kind = key.split(".")
        at, role = int(number), ROLES[name]
        form = dual.weight(at, role) if kind == "weight" else dual.bias(at, role)
        torch.testing.assert_close(form, change, rtol=1e-9, atol=1e-12)
    # And so for what a query sees: dW x is attention to the training tokens.
    x = learned.trace.extras["layer_inputs"]
    for role in ROLES.values():
        change = dual.change(x, role)
        for layer in range(3):
            expected = torch.zeros_like(change[:, layer])
            if f"layers.{layer}.{role}.weight" in learned.delta:
                expected = x[:, layer] @ learned.delta[f"layers.{layer}.{role}.weight"].T
            torch.testing.assert_close(change[:, layer], expected, rtol=1e-9, atol=1e-10)


def test_which_tokens() -> None:
    bench = tiny_bench("gpt2", want=WANT, shots=2, queries=3)
    dual = Dual.of(bench.learned("gd", LR).log)
    lengths = [len(tokens) for tokens, _ in oracle.sequences(bench.lesson)]
    assert dual.demonstrations.tolist() == [0] * lengths[0] + [1] * lengths[1]
    assert dual.positions.tolist() == [*range(lengths[0]), *range(lengths[1])]
    attention = dual.attention(bench.zero_shot.extras["layer_inputs"], "value")
    assert attention.shape == (3, 3, sum(lengths))
    # The label's last token is not followed by anything that it could be blamed for.
    last = dual.positions == torch.tensor(lengths)[dual.demonstrations] - 1
    assert attention[..., last].max() == 0
    assert attention[..., ~last].min() >= 0


def test_what_has_no_dual_form() -> None:
    with pytest.raises(InputError, match="no dual form was recorded"):
        Dual.of(tiny_bench().learned("gd", LR).log)
    with pytest.raises(InputError, match="element by element has no dual form"):
        tiny_bench(want=WANT).learned("lcgd-clipped", LR, clip="elementwise", threshold=0.01)


@pytest.mark.parametrize("family", [*oracle.FAMILIES, "bloom", "gpt_neox"])
@pytest.mark.parametrize("read_at", ["prompt-end", "first-label"])
def test_direct_change_of_each_layer(family: str, read_at: str) -> None:
    """One layer's delta at a time: below it nothing moves, so its attn_out is what the learner's own pass shows."""
    bench = tiny_bench(family, shots=2, queries=5, read_at=read_at)
    delta = bench.learned("gd", LR).delta
    assert delta is not None
    direct = direct_attn_out(bench.model, bench.lesson, delta)
    for layer in range(3):
        one = Delta({name: change for name, change in delta.items() if name.startswith(f"layers.{layer}.")})
        with one.applied(bench.model):
            alone = bench.model.read(bench.lesson).attn_out
        torch.testing.assert_close(direct[:, layer], alone[:, layer], rtol=1e-9, atol=1e-10)
    assert not torch.allclose(direct, bench.zero_shot.attn_out)
    nothing = direct_attn_out(bench.model, bench.lesson, delta.scaled(0))
    torch.testing.assert_close(nothing, bench.zero_shot.attn_out, rtol=1e-9, atol=1e-10)


def test_direct_is_about_keys_and_values() -> None:
    bench = tiny_bench(shots=2)
    delta = bench.learned("gd-all", LR).delta
    assert delta is not None
    with pytest.raises(InputError, match="keys and values"):
        direct_attn_out(bench.model, bench.lesson, delta)
