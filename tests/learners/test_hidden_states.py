"""Task vectors, function vectors and the kernel, against plain implementations written from the papers."""

from __future__ import annotations

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.learners.hidden_states.function_vector import indirect_effects, mean_heads, shuffled
from dualscope.models.architecture.parts import output_projection, written_by_heads
from tests.learners import plain_hypotheses as plain
from tests.learners.setting import tiny_lesson, tiny_task, wrapped
from tests.models.oracle import watch
from tests.models.tiny import FAMILIES, default_dtype

SOME = ("gpt2", "llama", "gemma2", "gpt_neox", "xglm")


def bench_of(family: str, spare: int = 60, **options: int) -> Bench:
    model = wrapped(family)
    lesson = tiny_lesson(model, task=tiny_task(n=2 * (spare + 10)), **{"shots": 3, "queries": 4, **options})
    return Bench(model, lesson)


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("mode", ["replace", "add"])
def test_task_vector(family: str, mode: str) -> None:
    bench, layer = bench_of(family), 1
    found = bench.learned("task-vector", mode=mode, layer=layer, dummies=3)
    lesson, hf = bench.lesson, bench.model.hf
    with default_dtype(torch.float64):
        dummies = bench.materials(3, "it").queries
        vector = plain.mean_residual(hf, lesson.context, dummies, layer)
        if mode == "add":
            vector = vector - plain.mean_residual(hf, lesson.bos, dummies, layer)
        change = (lambda row: vector) if mode == "replace" else (lambda row: row + vector)
        expected = plain.steered(hf, lesson, layer, change)
    torch.testing.assert_close(found.trace.label_logprobs, expected, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(expected, bench.zero_shot.label_logprobs, atol=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_function_vector(family: str) -> None:
    bench, prompts = bench_of(family), 5
    model, hf, lesson = bench.model, bench.model.hf, bench.lesson
    asked = bench.materials(prompts, "it")
    means = torch.stack([plain.head_outputs(hf, [*lesson.context, *q], model.n_heads) for q in asked.queries]).mean(0)
    torch.testing.assert_close(mean_heads(bench, prompts), means, rtol=1e-8, atol=1e-8)
    effects = indirect_effects(bench, prompts)
    contexts = [shuffled(lesson, i % 4).context for i in range(prompts)]
    for layer, head in ((0, 1), (2, 3)):
        expected = plain.indirect_effect(hf, lesson, contexts, asked.queries, asked.labels, means, layer, head)
        assert float(effects[:, layer, head].mean()) == pytest.approx(expected, rel=1e-8, abs=1e-9)
    which = ((0, 1), (2, 3), (1, 0))
    vector = sum(plain.written(hf, layer, head, means[layer, head]) for layer, head in which)
    assert isinstance(vector, torch.Tensor)
    expected_logprobs = plain.steered(hf, lesson, 1, lambda row: row + vector)
    found = bench.learned("function-vector", layer=1, which=which, prompts=prompts)
    torch.testing.assert_close(found.trace.label_logprobs, expected_logprobs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_sum_to_attn_out(family: str) -> None:
    bench = bench_of(family)
    trace = bench.model.read(bench.lesson, want=frozenset({"heads"}))
    for layer in range(bench.model.n_layers):
        total = written_by_heads(bench.model, layer, trace.extras["heads"][:, layer]).sum(-2)
        bias = getattr(output_projection(bench.model, layer), "bias", None)
        total = total if bias is None else total + bias
        torch.testing.assert_close(total, trace.attn_out[:, layer], rtol=1e-10, atol=1e-10)


def test_kernel_by_loops() -> None:
    bench = bench_of("llama", shots=5)
    for temperature in (0.0, 0.3):
        found = bench.learned("kernel", layer=2, temperature=temperature).trace.label_logprobs
        taught = bench.lesson.training
        hidden = []
        for d in taught:
            _, layers = watch(bench.model.hf, [*bench.lesson.bos, *d.prompt])
            hidden.append(layers[2].residual[-1])
        centre = torch.stack(hidden).mean(0)
        for query, row in zip(bench.lesson.queries, found, strict=True):
            _, layers = watch(bench.model.hf, [*bench.lesson.bos, *query])
            h = layers[2].residual[-1] - centre
            likeness = [float(torch.cosine_similarity(h, own - centre, dim=0)) for own in hidden]
            weights = [0.0, 0.0]
            nearest = max(range(len(taught)), key=lambda i: likeness[i])
            for i, d in enumerate(taught):
                if temperature == 0:
                    weights[d.label_index] += float(i == nearest)
                else:
                    weights[d.label_index] += float(torch.tensor(likeness[i] / temperature).exp())
            shares = torch.tensor(weights) / sum(weights)
            torch.testing.assert_close(row.exp().float(), shares, rtol=0, atol=1e-5)


def test_the_choice_is_the_best_of_its_curve() -> None:
    bench = bench_of("gpt2", spare=80)
    choice = bench.learned("task-vector").choice
    assert choice is not None
    assert choice.n >= 50
    rows = {row["layer"]: (-row["accuracy"], row["nll"]) for row in choice.curve if "layer" in row}
    assert set(rows) == {0, 1, 2}
    assert choice.settings == {"layer": min(rows, key=lambda layer: rows[layer])}
    asked = {example.id for example in bench.spare}
    assert not asked & set(bench.lesson.query_ids)
    assert not asked & {d.id for d in bench.lesson.demonstrations}


def test_controls_keep_the_choice() -> None:
    bench = bench_of("gpt2", spare=80)
    layer = bench.learned("task-vector").change.layer  # type: ignore[union-attr]
    for control in ("random-labels", "redraw", "random-update"):
        learned = bench.learned("task-vector", control=control)
        assert learned.change.layer == layer  # type: ignore[union-attr]
    real, random = (bench.learned("task-vector").change, bench.learned("task-vector", control="random-update").change)
    assert real is not None
    assert random is not None
    assert float(real.vector.norm()) == pytest.approx(float(random.vector.norm()))  # type: ignore[attr-defined]
    assert not torch.allclose(real.vector, random.vector)  # type: ignore[attr-defined]


def test_without_spare_examples_each_demonstration_is_left_out_in_turn() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=4, queries=4), spare=())
    choice = bench.learned("task-vector").choice
    assert choice is not None
    assert choice.n == 4


def test_a_function_vector_without_spare_examples_needs_a_few_demonstrations() -> None:
    model = wrapped("gpt2")
    few = Bench(model, tiny_lesson(model, shots=3, queries=4), spare=())
    with pytest.raises(InputError, match=r"at least 4 spare training examples .*, and there are 3; give more"):
        few.learned("function-vector", heads=2)
    enough = Bench(model, tiny_lesson(model, shots=4, queries=4), spare=())
    assert enough.learned("function-vector", heads=2).choice is not None


def test_bad_input() -> None:
    bench = bench_of("gpt2", spare=20)
    with pytest.raises(InputError, match="at least 50 spare training examples"):
        bench.learned("task-vector")
    with pytest.raises(InputError, match="layers 0 to 2, found 7"):
        bench.learned("task-vector", layer=7)
    for learner in ("probe", "function-vector", "kernel"):  # before anything is chosen beside it
        with pytest.raises(InputError, match=rf"learner '{learner}': option 'layer'.*layers 0 to 2, found 7"):
            bench_of("gpt2").learned(learner, layer=7)
    with pytest.raises(InputError, match="heads 0 to 3"):
        bench.learned("function-vector", layer=1, which=((0, 9),))
    with pytest.raises(InputError, match="needs 64 spare training examples"):
        bench.learned("kv-distilled", lr=0.001)
