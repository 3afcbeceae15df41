"""Layer-causal gradient descent against autograd over the whole model."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.choosing.spare_examples import RIDGES
from dualscope.core.errors import InputError
from dualscope.descent.trainable import Weights
from dualscope.learners import Bench
from dualscope.learners.gradient.lcgd import TEXTS, shortcuts_of
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading

LR = 0.3


@pytest.mark.parametrize("family", oracle.FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"readout": "attention"},
        {"space": "labels"},
        {"schedule": "sequential"},
        {"schedule": "sequential", "readout": "attention"},
        {"granularity": "token"},
        {"granularity": "token", "readout": "attention"},  # as the text of 2024 has it
        # as the text of 2023 has it
        {"granularity": "token", "space": "labels", "schedule": "sequential", "readout": "attention"},
        {"depth": 2},
        {"depth": 3, "readout": "attention"},
        {"depth": 2, "space": "labels", "granularity": "token"},
        {"schedule": "greedy"},
        {"schedule": "greedy", "readout": "attention", "space": "labels"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def test_delta(family: str, options: dict[str, Any]) -> None:
    bench = tiny_bench(family, shots=2, queries=2)
    bench.model.hf.train()
    learned = bench.learned("lcgd", LR, **options)
    expected = oracle.lcgd(bench.model.hf.eval(), bench.lesson, LR, **options)
    assert learned.delta is not None
    # The oracle goes back once for each loss. RMS norms do that in float32, whatever the model's dtype is.
    added_up = options.get("depth", 1) > 1 and family in ("llama", "gemma2")
    assert oracle.worst(learned.delta, expected.delta()) <= (1e-5 if added_up else 1e-9)


@pytest.mark.parametrize("family", ["opt", "gpt_neox", "gptj", "bloom", "gpt_neo", "phi3", "olmo2", "gemma3_text"])
@pytest.mark.parametrize("readout", ["block", "attention"])
def test_other_families_run_and_the_last_layer_agrees_with_gd(family: str, readout: str) -> None:
    """The last layer's own loss is the model's, so its first step is GD's; reading out elsewhere it is not."""
    bench = tiny_bench(family, shots=1, queries=2)
    local, plain = bench.learned("lcgd", LR, readout=readout).delta, bench.learned("gd", LR).delta
    last = f"layers.{bench.model.n_layers - 1}.value.weight"
    assert local is not None
    assert plain is not None
    close = torch.allclose(local[last], plain[last], rtol=1e-6, atol=1e-9)
    assert close == (readout == "block")
    assert local[last].isfinite().all()


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_layers_above_leave_no_trace_in_a_layers_gradient(family: str) -> None:
    bench = tiny_bench(family, shots=2, queries=2)
    before = bench.learned("lcgd", LR).delta
    plain_before = bench.learned("gd", LR).delta
    with torch.no_grad():
        for parameter in bench.model.blocks[2].parameters():
            parameter.mul_(1.5)
    again = type(bench)(bench.model, bench.lesson)
    after, plain_after = again.learned("lcgd", LR).delta, again.learned("gd", LR).delta
    assert before is not None
    assert after is not None
    assert plain_before is not None
    assert plain_after is not None
    for name in before:
        if not name.startswith("layers.2."):
            assert torch.equal(before[name], after[name]), name
    assert not torch.allclose(plain_before["layers.0.value.weight"], plain_after["layers.0.value.weight"])


def test_one_blocks_graph_at_a_time() -> None:
    """When a layer's gradient is taken, nothing of another layer is left in the graph."""
    bench = tiny_bench("gpt2", shots=1, queries=2)
    reached: list[set[str]] = []
    original = Weights.gradient

    def spy(self: Weights, loss: Tensor, layer: int | None = None, **rest: object) -> object:
        leaves = {id(leaf): name for name, leaf in self.leaves.items()}
        reached.append({leaves[i] for i in _leaves(loss) if i in leaves})
        return original(self, loss, layer, **rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Weights, "gradient", spy)
        bench.learned("lcgd", LR)
    assert reached == [{f"transformer.h.{i}.attn.c_attn.{k}" for k in ("weight", "bias")} for i in range(3)]


def _leaves(loss: Tensor) -> set[int]:
    found, pending, seen = set(), [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        pending += [after for after, _ in node.next_functions]
    return found


def test_layers_option() -> None:
    bench = tiny_bench("llama", shots=2, queries=2)
    one = bench.learned("lcgd", LR, layers=(1,)).delta
    assert one is not None
    assert {name.split(".")[1] for name in one} == {"1"}
    first = bench.learned("lcgd", LR, layers=(0,)).delta
    every = bench.learned("lcgd", LR).delta
    assert first is not None
    assert every is not None
    # Layer 0 sees nothing of the others, so it learns the same alone.
    assert torch.equal(first["layers.0.key.weight"], every["layers.0.key.weight"])


def _clip_oracle(clip: str, threshold: float, counts: list[bool]) -> object:
    def adjust(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        everything = torch.cat([g.flatten() for g in gradients.values()])
        size = everything.norm() if clip == "global-l2" else everything.abs().max()
        counts.append(bool(size > threshold))
        if clip == "elementwise":
            return {name: g.clamp(-threshold, threshold) for name, g in gradients.items()}
        return {name: g * min(1.0, threshold / float(size)) for name, g in gradients.items()}

    return adjust


@pytest.mark.parametrize(
    ("clip", "threshold"), [("global-l2", 2.0), ("linf", 0.3), ("elementwise", 0.05), ("global-l2", 2.3)]
)
def test_clipping_that_bites(clip: str, threshold: float) -> None:
    bench = tiny_bench("gpt2", shots=4, queries=2)
    counts: list[bool] = []
    adjust = _clip_oracle(clip, threshold, counts)
    expected = oracle.lcgd(bench.model.hf, bench.lesson, LR, adjust=adjust)  # type: ignore[arg-type]
    learned = bench.learned("lcgd-clipped", LR, clip=clip, threshold=threshold)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, expected.delta()) <= 1e-9
    assert learned.log.clipped_steps == sum(counts) > 0
    plain = bench.learned("lcgd", LR).delta
    assert plain is not None
    assert oracle.worst(learned.delta, dict(plain)) > 1e-3


def test_clipping_that_does_not_bite_says_so() -> None:
    bench = tiny_bench("gpt2", shots=2, queries=2)
    learned, plain = bench.learned("lcgd-clipped", LR), bench.learned("lcgd", LR)
    assert learned.log.clipped_steps == 0
    assert learned.delta is not None
    assert plain.delta is not None
    assert all(torch.equal(learned.delta[name], plain.delta[name]) for name in plain.delta)


@pytest.mark.parametrize("options", [{}, {"full_batch": True}, {"epochs": 2}, {"readout": "attention"}])
def test_matched_steps(options: dict[str, Any]) -> None:
    bench = tiny_bench("llama", shots=3, queries=2)
    common = {k: v for k, v in options.items() if k != "readout"}
    gd, lcgd = bench.learned("gd", LR, **common), bench.learned("lcgd", LR, **options)
    matched, converse = (bench.learned("lcgd-matched", LR, **options), bench.learned("gd-matched", LR, **options))
    torch.testing.assert_close(matched.log.step_norm, gd.log.step_norm)
    torch.testing.assert_close(converse.log.step_norm, lcgd.log.step_norm)
    # The first step goes in LCGD's own direction.
    assert matched.log.grad_norm is not None
    assert lcgd.log.grad_norm is not None
    torch.testing.assert_close(matched.log.grad_norm[0], lcgd.log.grad_norm[0])


@pytest.mark.parametrize("learner", ["lcgd-matched", "gd-matched"])
def test_matched_steps_begin_anew_in_a_second_training(learner: str) -> None:
    bench = tiny_bench("llama", dtype=torch.float32, shots=3, queries=2)
    learned = bench.learned(learner, LR)
    again = bench.reread(learned)  # float32 is trained again, for the signal to noise
    assert again is not None
    torch.testing.assert_close(again.trace.attn_out, learned.trace.attn_out, rtol=1e-3, atol=1e-4)


def test_a_zero_step_stays_zero() -> None:
    bench = tiny_bench("llama", shots=2, queries=2)
    with torch.no_grad():
        # this layer's attention says nothing
        bench.model.attentions[1].get_parameter("o_proj.weight").zero_()
    for name in ("lcgd-matched", "gd-matched"):
        learned = bench.learned(name, LR)
        assert learned.delta is not None
        assert learned.delta["layers.1.key.weight"].abs().max() == 0
        assert learned.trace.attn_out.isfinite().all()


def test_bad_input() -> None:
    bench = tiny_bench()
    with pytest.raises(InputError, match="full_batch needs schedule: parallel"):
        bench.learned("lcgd", LR, full_batch=True, schedule="sequential")
    with pytest.raises(InputError, match="so it needs schedule: parallel"):
        bench.learned("lcgd-clipped", LR, schedule="sequential")
    bench.learned("lcgd-clipped", LR, schedule="sequential", clip="elementwise")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_deep_is_between_its_own_loss_and_the_whole_models(family: str) -> None:
    """The last layer's loss is the model's own, and no other reaches it, at any depth."""
    bench = tiny_bench(family, shots=1, queries=2)
    own, deep, plain = (
        bench.learned(name, LR).delta if depth is None else bench.learned(name, LR, depth=depth).delta
        for name, depth in (("lcgd", 1), ("lcgd", 99), ("gd", None))
    )
    assert own is not None
    assert deep is not None
    assert plain is not None
    first, last = "layers.0.value.weight", f"layers.{bench.model.n_layers - 1}.value.weight"
    torch.testing.assert_close(deep[last], plain[last], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(deep[last], own[last], rtol=1e-6, atol=1e-9)
    assert not torch.allclose(deep[first], own[first], rtol=1e-3)
    assert not torch.allclose(deep[first], plain[first], rtol=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_shortcuts_are_ridge_maps_that_losses_go_through(family: str) -> None:
    model = wrapped(family)
    bench = Bench(model, tiny_lesson(model, shots=2, queries=2, task=tiny_task(n=300)))
    asked, found = bench.materials(TEXTS, "it"), shortcuts_of(bench)
    assert len(found) == model.n_layers - 1
    streams: list[list[Tensor]] = [[] for _ in range(model.n_layers)]
    for prompt in asked.queries:
        layers = reading.watch(model.hf, [*bench.lesson.bos, *prompt])[1]
        for own, layer in zip(streams, layers, strict=True):
            own += layer.residual[len(bench.lesson.bos) :].unbind()
    x, y = torch.stack(streams[0]), torch.stack(streams[-1])
    x, y = (values - values.mean(0) for values in (x, y))
    errors = {}
    for share in RIDGES:
        penalty = share * float(x.square().sum(1).mean()) * torch.eye(x.shape[1], dtype=x.dtype)
        fits = torch.linalg.solve(x.T @ x + penalty, x.T @ y)
        hat = (x @ torch.linalg.inv(x.T @ x + penalty) @ x.T).diagonal()
        errors[share] = float((((y - x @ fits) / (1 - hat)[:, None]) ** 2).sum()), fits
    expected = min(errors.values(), key=lambda one: one[0])[1]
    torch.testing.assert_close(found[0].matrix, expected.T, rtol=1e-6, atol=1e-8)
    learned = bench.learned("lcgd", LR, readout="shortcut").delta
    by_hand = oracle.lcgd(model.hf, bench.lesson, LR, shortcuts=found).delta()
    assert oracle.worst(learned, by_hand) <= 1e-8
    # What is taught does not change them.
    assert bench.learned("lcgd", LR, control="random-labels", readout="shortcut").delta is not None
    assert shortcuts_of(bench) is found


def test_a_greedy_layer_learns_more_than_in_one_pass() -> None:
    bench = tiny_bench("gpt2", shots=3, queries=2)
    greedy, once = (bench.learned("lcgd", 0.05, schedule=how).delta for how in ("greedy", "sequential"))
    assert greedy is not None
    assert once is not None
    assert float(greedy.norms()[0]) > 2 * float(once.norms()[0])


def test_what_does_not_go_together() -> None:
    bench = tiny_bench("gpt2", shots=2, queries=2)
    several: tuple[dict[str, Any], ...] = ({"schedule": "greedy", "epochs": 2}, {"depth": 2, "schedule": "greedy"})
    for wrong in (*several, {"depth": 0}):
        with pytest.raises(InputError, match=r"lcgd"):
            bench.learned("lcgd", LR, **wrong)
    with pytest.raises(InputError, match="greedy has no dual form"):
        tiny_bench("gpt2", shots=2, queries=2, want=frozenset({"dual"})).learned("lcgd", LR, schedule="greedy")
    few = wrapped("gpt2")
    with pytest.raises(InputError, match="needs 64 spare training examples"):
        Bench(few, tiny_lesson(few, shots=2, queries=2)).learned("lcgd", LR, readout="shortcut")
