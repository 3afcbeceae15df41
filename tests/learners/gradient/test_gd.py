"""Plain gradient descent against autograd over the whole model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jvp
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from dualscope.choosing.halving import GRID, Score, Search
from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError
from dualscope.descent.samples import ordered, samples
from dualscope.descent.trainable import weights_for
from dualscope.learners import LEARNERS, Bench, Delta, identify
from dualscope.learners.gradient.gd import (
    EPOCHS,
    PARTS,
    RATES_OF,
    GdLayers,
    GdTuned,
    SomeLayersOptions,
    TunedOptions,
    forward_mode,
    layer_sets,
    two_backward_passes,
)
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.trace import Trace
from dualscope.tasks.lesson import DemonstrationTokens, Lesson
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading

LR = 0.3


@pytest.mark.parametrize("family", oracle.FAMILIES)
@pytest.mark.parametrize("bos", [True, False])
def test_delta_and_trace(family: str, bos: bool) -> None:
    model = wrapped(family, bos=bos)
    model.hf.train()  # gpt2 and xglm have dropout in their configs: it must be off while training too
    bench = Bench(model, tiny_lesson(model))
    learned = bench.learned("gd", LR)
    expected = oracle.gd(model.hf, bench.lesson, LR)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, expected.delta()) <= 1e-9
    trace = reading.oracle(expected.hf, bench.lesson, bench.lesson.bos)
    for name in ("attn_out", "residual", "label_logprobs", "attn_scores"):
        torch.testing.assert_close(getattr(learned.trace, name), trace[name], rtol=1e-8, atol=1e-8, equal_nan=True)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("options", "roles", "layers", "kinds"),
    [
        ({"parameters": "k"}, ("key",), (0, 1, 2), ("weight", "bias")),
        ({"parameters": "v", "biases": False}, ("value",), (0, 1, 2), ("weight",)),
        ({"layers": (0, 2), "loss": "label"}, ("key", "value"), (0, 2), ("weight", "bias")),
    ],
)
def test_which_weights(
    family: str, options: dict[str, Any], roles: tuple[str, ...], layers: tuple[int, ...], kinds: tuple[str, ...]
) -> None:
    bench = tiny_bench(family)
    names = [f"layers.{i}.{r}.{k}" for i in layers for r in roles for k in kinds]
    names = [n for n in names if n in oracle.Copy(bench.model.hf).table()]
    expected = oracle.gd(bench.model.hf, bench.lesson, LR, names, label=options.get("loss") == "label")
    learned = bench.learned("gd", LR, **options)
    assert learned.delta is not None
    assert set(learned.delta) == set(names)
    assert oracle.worst(learned.delta, expected.delta()) <= 1e-9


def test_two_epochs_are_one_pass_over_twice_as_many() -> None:
    bench = tiny_bench()
    lesson = bench.lesson
    twice = oracle.gd(bench.model.hf, _with_training(bench, lesson.training * 2), LR)
    learned = bench.learned("gd", LR, epochs=2)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, twice.delta()) <= 1e-9
    assert learned.log.grad_norm is not None
    assert learned.log.grad_norm.shape == (6, 3)


def test_full_batch_is_the_gradient_of_the_mean_and_forgets_the_order() -> None:
    bench = tiny_bench(shots=4)
    copy = oracle.Copy(bench.model.hf)
    losses = [oracle.cross_entropy(copy.run(t)[0], t, 1) for t, _ in oracle.sequences(bench.lesson)]
    copy.step(copy.gradients(sum(losses[1:], losses[0]) / 4, list(copy.table())), LR)
    full = bench.learned("gd", LR, full_batch=True).delta
    assert full is not None
    assert oracle.worst(full, copy.delta()) <= 1e-9
    full_other = bench.learned("gd", LR, full_batch=True, order=1).delta
    one, other = bench.learned("gd", LR).delta, bench.learned("gd", LR, order=1).delta
    assert full_other is not None
    assert one is not None
    assert other is not None
    assert oracle.worst(full, dict(full_other)) <= 1e-12
    assert oracle.worst(one, dict(other)) > 1e-3


def test_published_choices() -> None:
    """gd_demonstrations: all trains on what the context has no room for; read_at moves the trace, not the delta."""
    model = wrapped("gpt2")
    room: dict[str, Any] = {"shots": 6, "max_positions": 60}
    same = Bench(model, tiny_lesson(model, **room))
    every = Bench(model, tiny_lesson(model, gd_demonstrations="all", read_at="first-label", **room))
    used = same.lesson.shots_used
    assert used < 6
    assert len(same.learned("gd", LR).log.grad_norm) == used  # type: ignore[arg-type]
    learned = every.learned("gd", LR)
    assert len(learned.log.grad_norm) == 6  # type: ignore[arg-type]
    expected = oracle.gd(model.hf, every.lesson, LR)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, expected.delta()) <= 1e-9
    trace = reading.oracle(expected.hf, every.lesson, every.lesson.bos)
    torch.testing.assert_close(learned.trace.attn_out, trace["attn_out"], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(learned.trace.label_logprobs, trace["label_logprobs"], rtol=1e-8, atol=1e-8)


def test_norms_are_logged() -> None:
    bench = tiny_bench("llama", shots=2)
    log = bench.learned("gd", LR).log
    copy = oracle.Copy(bench.model.hf)
    tokens, _ = oracle.sequences(bench.lesson)[0]
    gradients = copy.gradients(oracle.cross_entropy(copy.run(tokens)[0], tokens, 1), list(copy.table()))
    first = [torch.cat([g.flatten() for n, g in gradients.items() if f".{i}." in n]).norm() for i in range(3)]
    assert log.grad_norm is not None
    assert log.step_norm is not None
    assert log.update_norm is not None
    torch.testing.assert_close(log.grad_norm[0], torch.stack(first))
    torch.testing.assert_close(log.step_norm, LR * log.grad_norm)
    delta = oracle.gd(bench.model.hf, bench.lesson, LR)
    for i in range(3):
        moved = torch.cat([d.flatten() for n, d in delta.delta().items() if f".{i}." in n]).norm()
        before = torch.cat([b.flatten() for n, b in delta.before.items() if f".{i}." in n]).norm()
        torch.testing.assert_close(log.update_norm[i], moved / before)


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_records_for_kendall(family: str) -> None:
    bench = tiny_bench(family, want=frozenset({"kendall"}), shots=2)
    learned = bench.learned("gd", LR)
    queries, inputs = [], []
    copy = oracle.Copy(bench.model.hf)
    for tokens, _ in oracle.sequences(bench.lesson):
        logits, layers = copy.run(tokens)
        queries.append(torch.stack([layer.query.transpose(0, 1).flatten(1)[1:] for layer in layers]).detach())
        inputs.append(torch.stack([layer.inputs[1:] for layer in layers]).detach())
        copy.step(copy.gradients(oracle.cross_entropy(logits, tokens, 1), list(copy.table())), LR)
    torch.testing.assert_close(learned.log.records["queries"], torch.cat(queries, 1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(learned.log.records["inputs"], torch.cat(inputs, 1), rtol=1e-9, atol=1e-9)
    assert {"query_vectors", "layer_inputs"} <= set(learned.trace.extras)
    assert "context_scores" in bench.in_context.extras


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_all_weights(family: str) -> None:
    bench = tiny_bench(family)
    learned = bench.learned("gd-all", LR / 10)
    copy = oracle.Copy(bench.model.hf)
    before = {name: p.detach().clone() for name, p in copy.hf.named_parameters()}
    for tokens, _ in oracle.sequences(bench.lesson):
        loss = oracle.cross_entropy(copy.run(tokens)[0], tokens, 1)
        copy.hf.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in copy.hf.parameters():
                if p.grad is not None:
                    p -= LR / 10 * p.grad
    expected = {name: p.detach() - before[name] for name, p in copy.hf.named_parameters()}
    assert learned.delta is not None
    assert oracle.worst(learned.delta, expected) <= 1e-9


def test_bad_input() -> None:
    bench = tiny_bench()
    with pytest.raises(InputError, match="needs a learning rate: give --lr"):
        bench.learned("gd")
    with pytest.raises(InputError, match="above 0"):
        bench.learned("gd", -1.0)
    with pytest.raises(InputError, match=r"layers 0 to 2; found \[7\]"):
        bench.learned("gd", LR, layers=(7,))
    with pytest.raises(InputError, match="option 'epochs'"):
        identify("gd", {"epochs": 0})
    with pytest.raises(InputError, match="did you mean gd"):
        bench.learned("gdd", LR)


def _with_training(bench: Bench, training: tuple[DemonstrationTokens, ...]) -> Lesson:
    from dataclasses import replace

    return replace(bench.lesson, training=training)


def test_an_order_of_its_own_is_another_than_the_contexts() -> None:
    """The published code: ICL and fine-tuning have different permutations wherever there is one."""
    bench = tiny_bench("gpt2", shots=5, queries=2, order=2)
    own = Bench(bench.model, replace(bench.lesson, gd_order="own"))
    same_delta, own_delta = bench.learned("gd", LR).delta, own.learned("gd", LR).delta
    assert same_delta is not None
    assert own_delta is not None
    order = ordered(5, 2, bench.lesson.episode.seed)
    assert order != sorted(order)
    shuffled = replace(bench.lesson, training=tuple(bench.lesson.training[i] for i in order))
    expected = oracle.gd(bench.model.hf, shuffled, LR)
    assert oracle.worst(own_delta, expected.delta()) <= 1e-9
    assert oracle.worst(same_delta, expected.delta()) > 1e-6
    assert torch.equal(own.in_context.attn_out, bench.in_context.attn_out)  # the context keeps its order
    # Where the demonstrations stand as drawn there is nothing to differ in.
    drawn = tiny_bench("gpt2", shots=5, queries=2)
    alike = Bench(drawn.model, replace(drawn.lesson, gd_order="own")).learned("gd", LR).delta
    plain = drawn.learned("gd", LR).delta
    assert alike is not None
    assert plain is not None
    assert all(torch.equal(alike[name], plain[name]) for name in plain)


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


def test_bad_input_of_some_layers() -> None:
    bench = tiny_bench("gpt2")
    with pytest.raises(InputError, match="has layers 0 to 2"):
        bench.learned("gd-layers", LR, layers=(7,))
    options = SomeLayersOptions.model_validate({"lr": 0.1})
    assert LEARNERS["gd-layers"] is GdLayers
    assert len(GdLayers().candidates(bench.model, options)) == len(layer_sets(3))


def test_candidates_are_all_that_is_open() -> None:
    found = GdTuned().candidates(wrapped("gpt2"), TunedOptions.model_validate({}))
    assert len(found) == len({tuple(sorted(one.items())) for one in found}) == 4 * (len(GRID) + 7)
    rates = {which: sorted({one["lr"] for one in found if one["optimiser"] == which}) for which in RATES_OF}
    assert rates["sgd"] == list(GRID)
    assert rates["adam"] == pytest.approx([1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2])
    given = GdTuned().candidates(
        wrapped("gpt2"), TunedOptions.model_validate({"lr": 0.5, "loss": "label", "parameters": "kv"})
    )
    assert [(one["lr"], one["optimiser"]) for one in given] == [(0.5, "sgd"), (0.5, "adam")]


def test_weights_of_16_bits_learn_beside() -> None:
    found = GdTuned().candidates(wrapped("gpt2", torch.bfloat16), TunedOptions.model_validate({}))
    assert {one["parameters"] for one in found} == {"kv"}


@pytest.mark.parametrize(
    ("given", "best", "beyond"),
    [
        ({}, {"lr": RATES_OF["adam"][0], "epochs": 3, "optimiser": "adam"}, True),
        ({}, {"lr": RATES_OF["adam"][-1], "epochs": 3, "optimiser": "adam"}, True),
        ({}, {"lr": RATES_OF["adam"][-1], "epochs": 3, "optimiser": "sgd"}, False),
        ({}, {"lr": GRID[-1], "epochs": 3, "optimiser": "sgd"}, True),
        ({}, {"lr": 1e-3, "epochs": EPOCHS[-1], "optimiser": "sgd"}, True),
        ({"lr": GRID[0]}, {"lr": GRID[0], "epochs": 1, "optimiser": "sgd"}, False),
        ({"epochs": 10}, {"lr": 1e-3, "epochs": 10, "optimiser": "sgd"}, False),
    ],
)
def test_at_the_edge(given: dict[str, float], best: dict[str, object], beyond: bool) -> None:
    """The choice itself, between candidates whose scores are made up: one of them is better than all others."""
    learner = GdTuned()
    options = TunedOptions.model_validate({"loss": "label", "parameters": "kv", **given})
    candidates = [dict(one) for one in learner.candidates(wrapped("gpt2"), options)]
    search = Search(learner.rounds(options), [0])
    while not search.is_over:
        found = {}
        for one in candidates:
            settings = search.rounds.settings_of(search.number, one)
            if search.candidates is None or canonical(one) in search.candidates:
                right = 2 * all(settings[key] == value for key, value in best.items())
                right += all(settings[key] == best[key] for key in ("lr", "optimiser"))
                found[canonical(dict(settings))] = Score(right, 3.0 - right, 3)
        search.take({0: found})
    choice = search.choice()
    assert {key: choice.settings[key] for key in best} == best
    assert choice.at_edge == beyond


SMALL_LR = 0.5


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_one_step_from_the_start_is_plain_gd(family: str) -> None:
    both: tuple[dict[str, Any], ...] = ({"full_batch": True}, {})
    for options in both:
        bench = tiny_bench(family, shots=1 if not options else 3, queries=2)
        tangent, plain = (
            bench.learned("gd-linearized", SMALL_LR, **options).delta,
            bench.learned("gd", SMALL_LR, **options).delta,
        )
        assert tangent is not None
        assert plain is not None
        assert oracle.worst(tangent, dict(plain)) <= 1e-9


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_several_steps_by_an_explicit_jacobian(family: str) -> None:
    """Each step: theta <- theta - lr * sum_c (softmax(f_lin)_c - 1[c = y]) grad f_c at the first weights."""
    bench = tiny_bench(family, shots=3, queries=2)
    copy = oracle.Copy(bench.model.hf)
    table = copy.table()
    change = {name: torch.zeros_like(value) for name, value in copy.named().items()}
    for tokens, _ in oracle.sequences(bench.lesson):
        logits, _ = copy.run(tokens)
        moved = _logits_along(copy, tokens, change)
        wrong = moved.softmax(-1)[:-1]
        wrong[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])] -= 1
        wrong /= len(tokens) - 1
        found = torch.autograd.grad((logits[:-1] * wrong.detach()).sum(), [p for p, _ in table.values()])
        for (name, (_, view)), gradient in zip(table.items(), found, strict=True):
            change[name] = change[name] - SMALL_LR * view(gradient)
    learned = bench.learned("gd-linearized", SMALL_LR)
    assert learned.delta is not None
    assert oracle.worst(learned.delta, change) <= 1e-9
    plain = bench.learned("gd", SMALL_LR).delta
    assert plain is not None
    assert oracle.worst(learned.delta, dict(plain)) > 1e-4


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_both_ways_to_the_derivative(family: str) -> None:
    """Forward mode and two backward passes, at a change that is not zero."""
    bench = tiny_bench(family, shots=3, queries=2)
    change = bench.learned("gd", SMALL_LR).delta
    assert change is not None
    tokens = samples(bench.lesson.training, bench.lesson.bos, bench.model.device)[0]
    with torch.enable_grad(), weights_for(bench.model, change.slots(bench.model), tangent=True) as weights:
        weights.changes.update(change)
        with capturing(bench.model, Session(plain=True)):
            one, other = forward_mode(weights, tokens), two_backward_passes(weights, tokens)
    assert one[1].abs().max() > 1e-3
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)


def test_norms_of_wider_statistics_at_16_bits() -> None:
    """As on a GPU, where a layer norm at 16 bits keeps float32 statistics, and its derivative has their type."""
    model = wrapped("gpt2", torch.bfloat16)
    for module in model.hf.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.float()
    learned = Bench(model, tiny_lesson(model)).learned("gd-linearized", SMALL_LR)
    assert learned.delta is not None
    assert all(change.dtype == torch.float32 and change.any() for change in learned.delta.values())
    assert learned.trace.label_logprobs.isfinite().all()


def _logits_along(copy: oracle.Copy, tokens: list[int], change: dict[str, Tensor]) -> Tensor:
    """f + J.change by torch.func, with the test's own plain attention."""
    by_name = {id(p): name for name, p in copy.hf.named_parameters()}
    primal, tangent = {}, {}
    for name, (parameter, view) in copy.table().items():
        key = by_name[id(parameter)]
        primal[key] = parameter.detach()
        if key not in tangent:
            tangent[key] = torch.zeros_like(primal[key])
        view(tangent[key]).add_(change[name])

    class Runs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hf = copy.hf

        def forward(self) -> Tensor:
            return reading.watch_with_gradients(self.hf, tokens)[0]

    runs = Runs()

    def f(weights: dict[str, Tensor]) -> Tensor:
        logits: Tensor = functional_call(runs, {f"hf.{name}": value for name, value in weights.items()}, ())
        return logits

    value, derivative, *_ = jvp(f, (primal,), (tangent,))
    along: Tensor = value + derivative
    return along.detach()


@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_trace_is_the_finite_difference_linearisation(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # These norms round to float32 inside, and a small difference would show the rounding.
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda n, x: _rms(x, n.variance_epsilon) * n.weight)
    monkeypatch.setattr(Gemma2RMSNorm, "forward", lambda n, x: _rms(x, n.eps) * (1 + n.weight))
    bench = tiny_bench(family, shots=2, queries=4, want=frozenset({"layer_inputs"}))
    learned = bench.learned("gd-linearized", SMALL_LR)
    assert learned.delta is not None
    z = bench.zero_shot
    eps = 1e-6
    up, down = (_moved(bench, learned.delta, sign * eps) for sign in (1, -1))
    for name in ("attn_out", "attn_scores", "residual"):
        slope = (getattr(up, name) - getattr(down, name)) / (2 * eps)
        expected = getattr(z, name) + slope
        torch.testing.assert_close(getattr(learned.trace, name), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    slope = (up.extras["layer_inputs"] - down.extras["layer_inputs"]) / (2 * eps)
    torch.testing.assert_close(
        learned.trace.extras["layer_inputs"], z.extras["layer_inputs"] + slope, rtol=1e-6, atol=1e-6
    )
    assert not torch.allclose(learned.trace.attn_out, _moved(bench, learned.delta, 1.0).attn_out, rtol=1e-3)


def test_probabilities_are_of_the_linearised_logits() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=2, queries=3))
    learned = bench.learned("gd-linearized", SMALL_LR)
    assert learned.delta is not None
    copy = oracle.Copy(model.hf)
    for i, prompt in enumerate(bench.lesson.queries):
        for label, answer in enumerate(bench.lesson.answers):  # "Very Positive" has two tokens
            tokens = [*bench.lesson.bos, *prompt, *answer]
            logprobs = _logits_along(copy, tokens, dict(learned.delta)).log_softmax(-1)
            first = len(tokens) - len(answer)
            expected = torch.stack([logprobs[first + k - 1, t] for k, t in enumerate(answer)]).mean()
            torch.testing.assert_close(learned.trace.label_logprobs[i, label], expected)


def test_the_last_layers_exit_is_the_linearised_models_own_answer() -> None:
    bench = tiny_bench("gpt2", want=frozenset({"exits"}), shots=2, queries=5)
    trace = bench.learned("gd-linearized", SMALL_LR).trace
    assert trace.label_logprobs_at_layer is not None
    torch.testing.assert_close(trace.label_logprobs_at_layer[:, -1], trace.label_logprobs.log_softmax(-1))
    assert "readout" not in vars(bench.model)


def test_an_activation_with_a_backward_of_its_own_has_a_linearisation_too() -> None:
    bench = tiny_bench("bloom", shots=2, queries=3)
    learned, eps = bench.learned("gd-linearized", SMALL_LR), 1e-5
    assert learned.delta is not None
    up, down = (_moved(bench, learned.delta, sign * eps) for sign in (1, -1))
    slope = (up.attn_out - down.attn_out) / (2 * eps)
    torch.testing.assert_close(learned.trace.attn_out, bench.zero_shot.attn_out + slope, rtol=1e-6, atol=1e-6)


def _rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _moved(bench: Bench, delta: Delta, factor: float) -> Trace:
    with delta.scaled(factor).applied(bench.model):
        return bench.model.read(bench.lesson, want=bench.read_want)
