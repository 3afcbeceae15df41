"""Null learners: contexts of the same length that teach nothing, and positions that shift."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualscope.core.spec import IN_CONTEXT
from dualscope.learners import Bench, Learned, identify
from dualscope.learners.null_learners import demonstration_mass, filled, scrambled, unlabelled
from dualscope.metrics import Case, measure
from dualscope.metrics.attention_output import sim_aou, sim_aou_dilution, sim_aou_orthogonal
from dualscope.models import Model
from dualscope.tasks import Lesson
from tests.learners.setting import tiny_bench, wrapped
from tests.models import oracle
from tests.models import oracle as reading
from tests.models.lessons import random_lesson
from tests.models.tiny import FAMILIES, tiny_model
from tests.models.unlisted import sink_model

LR = 0.3


@pytest.mark.parametrize("family", ["llama", "gemma2", "gptj", "bloom"])
def test_a_shift_of_positions_changes_nothing_where_they_are_relative(family: str) -> None:
    bench = tiny_bench(family)
    shifted = bench.learned("zero-shot-offset").trace
    torch.testing.assert_close(shifted.attn_out, bench.zero_shot.attn_out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shifted.attn_scores, bench.zero_shot.attn_scores, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("family", ["gpt2", "xglm"])
def test_a_shift_of_positions_shows_where_they_are_learned(family: str) -> None:
    bench = tiny_bench(family)
    shifted = bench.learned("zero-shot-offset").trace
    assert not torch.allclose(shifted.attn_out, bench.zero_shot.attn_out, rtol=1e-2)
    lesson = bench.lesson
    offset = len(lesson.context) - len(lesson.bos)
    expected = reading.oracle(bench.model.hf, lesson, lesson.bos, offset)
    torch.testing.assert_close(shifted.attn_out, expected["attn_out"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["unlabelled", "scrambled", "other-task"])
def test_null_contexts_have_the_same_length(kind: str) -> None:
    bench = tiny_bench(other=True)
    lesson = bench.lesson
    context = {
        "unlabelled": unlabelled(lesson),
        "scrambled": scrambled(lesson),
        "other-task": filled(lesson, bench.other),
    }[kind]
    assert len(context) == len(lesson.context)
    assert context != lesson.context
    assert context[:1] == lesson.bos
    assert context[-1:] == lesson.separator
    trace = bench.learned("null-context", kind=kind).trace
    expected = reading.oracle(bench.model.hf, lesson, context)
    torch.testing.assert_close(trace.attn_out, expected["attn_out"], rtol=1e-8, atol=1e-8)


def test_what_null_contexts_hold() -> None:
    bench = tiny_bench(other=True)
    lesson, answers = bench.lesson, {t for answer in bench.lesson.answers for t in answer}
    assert not answers & set(unlabelled(lesson))
    assert Counter(scrambled(lesson)) == Counter(lesson.context)
    long, short = bench.other.context, lesson.context
    assert filled(lesson, bench.other)[-8:] == (long * 3)[-8:]
    assert len(filled(bench.other, lesson)) == len(long)
    assert len(short) != len(long)


def test_nulls_can_be_read_again() -> None:
    bench = tiny_bench(shots=3, queries=5)
    for name in ("null-context", "zero-shot-offset", "in-context/redraw", "in-context/reorder"):
        learned = bench.learned(name)
        assert learned.again is not None
        torch.testing.assert_close(learned.again(bench.lesson).attn_out, learned.trace.attn_out)


@contextmanager
def shrunk(hf: Any, kept: Sequence[Tensor], row: int) -> Iterator[None]:
    """Every head's share of what reaches the output projection at one row, times what is kept: [heads] a layer."""
    place = oracle.PLACES.get(hf.config.model_type, oracle._LLAMA)
    handles = []
    for block, scale in zip(hf.get_submodule(place.blocks), kept, strict=True):
        projection = block.get_submodule(place.attention).get_submodule(place.output)

        def hook(_: nn.Module, args: tuple[Tensor, ...], scale: Tensor = scale) -> tuple[Tensor, ...]:
            heads = args[0].clone().unflatten(-1, (len(scale), -1))
            heads[0, row] = heads[0, row] * scale[:, None]
            return (heads.flatten(-2), *args[1:])

        handles.append(projection.register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plain_dilution(hf: Any, lesson: Lesson, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """attn_out and residual [layers, width] and label log-probabilities, one pass at a time, no shared context."""
    own = list(lesson.own_tokens(query))
    _, seen = oracle.watch(hf, [*lesson.context, *own])
    kept = [1 - layer.weights[:, -1, len(lesson.bos) : len(lesson.context)].sum(-1) for layer in seen]
    row = len(lesson.bos) + len(own) - 1
    logprobs = []
    with shrunk(hf, kept, row):
        _, layers = oracle.watch(hf, [*lesson.bos, *own])
        for answer in lesson.answers:
            tokens = [*lesson.bos, *lesson.queries[query], *answer]
            logits, _ = oracle.watch(hf, tokens)
            first = len(tokens) - len(answer)
            said = logits.log_softmax(-1)
            logprobs.append(torch.stack([said[t - 1, tokens[t]] for t in range(first, len(tokens))]).mean())
    return (
        torch.stack([layer.attn_out[row] for layer in layers]),
        torch.stack([layer.residual[row] for layer in layers]),
        torch.stack(logprobs),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_with_plain_hooks(family: str) -> None:
    """Grouped heads, windows, softcaps, ALiBi, labels of several tokens; float64, one query at a time."""
    model = Model(*tiny_model(family, torch.float64), name=family)
    lesson = random_lesson(queries=(3, 12, 5), answers=((16,), (17, 18)))
    learned = Bench(model, lesson).learned("dilution")
    for query in range(3):
        attn_out, residual, logprobs = plain_dilution(model.hf, lesson, query)
        torch.testing.assert_close(learned.trace.attn_out[query], attn_out, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(learned.trace.residual[query], residual, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(learned.trace.label_logprobs[query], logprobs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("answers", [((16,), (17,)), ((16,), (17, 18))])
def test_batches_do_not_matter(answers: tuple[tuple[int, ...], ...]) -> None:
    """Queries of mixed lengths in one batch, or alone: each has its own lambda at its own read position."""
    model = wrapped("gpt2")
    lesson = random_lesson(answers=answers)
    bench = Bench(model, lesson)
    kept = 1 - demonstration_mass(bench)
    whole, alone = (model.read(lesson, head_scales=kept, batch_size=size) for size in (None, 1))
    torch.testing.assert_close(whole.attn_out, alone.attn_out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(whole.label_logprobs, alone.label_logprobs, rtol=1e-10, atol=1e-12)
    assert learned_alike(bench.learned("dilution"), whole)


def learned_alike(learned: Learned, trace: Any) -> bool:
    return torch.equal(learned.trace.attn_out, trace.attn_out)


def test_where_inputs_are_equal_the_change_is_lambda_times_demonstrations_less_zero_shot() -> None:
    """Layer 0 with relative positions: c - z = W_o lam (demos - z), and dilution is its second part alone.

    Without BOS, which a context moves further away: then its score is another one. transformers keeps rotary
    tables in float32, so that distances are equal to a millionth.
    """
    model = Model(*tiny_model("llama", torch.float64))
    lesson = random_lesson(queries=(3, 5, 9), bos=False)
    bench = Bench(model, lesson, want=frozenset({"mass"}))
    z, c, d = (t.attn_out[:, 0] for t in (bench.zero_shot, bench.in_context, bench.learned("dilution").trace))
    projection = model.attentions[0].get_submodule("o_proj")
    first = model.hf.model.layers[0].self_attn
    for query in range(3):
        tokens = [*lesson.context, *lesson.own_tokens(query)]
        _, layers = oracle.watch(model.hf, tokens)
        values = first.v_proj(layers[0].inputs).unflatten(-1, (2, 8)).repeat_interleave(2, 1)  # grouped heads
        weights = layers[0].weights[:, -1]  # [heads, tokens]
        demos = slice(len(lesson.bos), len(lesson.context))
        lam = weights[:, demos].sum(-1)
        torch.testing.assert_close(bench.in_context.extras["demo_mass"][query, 0], lam)
        said = torch.einsum("ht,thd->hd", weights[:, demos], values[demos])  # lam x demos, a head
        with torch.no_grad():
            torch.testing.assert_close(c[query] - d[query], projection(said.flatten()), rtol=1e-5, atol=1e-6)
        assert float((c[query] - z[query]).norm()) > 1e-3


def test_sinks_stay_in_the_denominator() -> None:
    """A sink takes weight from demonstrations and own tokens alike: lam is smaller, and the rest is not 1 - lam."""
    model, lesson = Model(*sink_model()), random_lesson()

    def masses(sink: float) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for module in model.attentions:
                module.get_parameter("sinks").fill_(sink)
        bench = Bench(model, lesson, want=frozenset({"mass"}))
        return demonstration_mass(bench)[:, 0], bench.in_context.extras["bos_mass"][:, 0]

    (lam, bos), (without, bos_without) = masses(12.0), masses(-60.0)
    assert float((lam / without).median()) < 0.9
    torch.testing.assert_close(lam * bos_without, bos * without, rtol=1e-4, atol=1e-6)


def silent_model() -> tuple[Model, Lesson]:
    """One layer, and demonstrations whose tokens have no value: in context nothing is said."""
    model = Model(*tiny_model("llama", torch.float64, num_hidden_layers=1))
    lesson = random_lesson(queries=(3, 5, 9), bos=False)
    shown = sorted(set(lesson.context))
    asked = {token for query in lesson.queries for token in query}
    spare = sorted(set(range(4, 96)) - set(shown))
    swap = {token: spare[i % len(spare)] for i, token in enumerate(sorted(asked))}
    lesson = replace(lesson, queries=tuple(tuple(swap[t] for t in query) for query in lesson.queries))
    with torch.no_grad():
        block = model.hf.model.layers[0]
        block.input_layernorm.weight.fill_(1.0)  # a norm that scales alike keeps the null space
        _, _, vh = torch.linalg.svd(block.self_attn.v_proj.weight)
        hidden = vh[16:]  # what the values (16 of a width of 32) do not see
        embed = model.hf.get_input_embeddings().weight
        embed[shown] = embed[shown] @ hidden.T @ hidden
    return model, lesson


def test_demonstrations_that_say_nothing_are_dilution() -> None:
    """Positive: where the context adds nothing, in-context learning *is* dilution, to the last prediction."""
    model, lesson = silent_model()
    bench = Bench(model, lesson)
    c, d = bench.in_context, bench.learned("dilution").trace
    assert float(demonstration_mass(bench).min()) > 0.05
    torch.testing.assert_close(d.attn_out, c.attn_out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(d.label_logprobs, c.label_logprobs, rtol=1e-5, atol=1e-6)
    rows = rows_of(bench, "dilution")
    assert rows["sim_aou"] == pytest.approx(1.0)
    assert rows["sim_aou_dilution"] > 0.8  # heads shrink by shares of their own, so the vector form is near, not equal


def test_demonstrations_that_speak_are_not() -> None:
    """Negative: loud values in the demonstrations, and dilution explains little of the change."""
    model, lesson = silent_model()
    with torch.no_grad():
        embed = model.hf.get_input_embeddings().weight
        shown = sorted(set(lesson.context))
        v = model.hf.model.layers[0].self_attn.v_proj.weight
        embed[shown] += 3 * (v.T @ torch.ones(16, dtype=torch.float64))
    rows = rows_of(Bench(model, lesson), "dilution")
    assert abs(rows["sim_aou"]) < 0.5
    assert abs(rows["sim_aou_dilution"]) < 0.5


def rows_of(bench: Bench, learner: str, lr: float | None = None) -> dict[str, float]:
    case = Case(
        bench.zero_shot,
        bench.result(identify(learner, lr=lr)),
        bench.result(IN_CONTEXT),
        relative_positions=bench.model.relative_positions,
        output_bias=bench.model.output_bias,
    )
    rows = measure(case).rows
    return {row["metric"]: row["value"] for row in rows if row["layer"] is None}


def test_the_bias_of_the_output_projection_does_not_shrink() -> None:
    """With one head, one share: the vector form is exact once the bias is left out, and only then."""
    model = Model(*tiny_model("gpt2", torch.float64, n_head=1, n_layer=1))
    with torch.no_grad():
        model.attentions[0].get_parameter("c_proj.bias").normal_(generator=torch.Generator().manual_seed(0))
    bench = Bench(model, random_lesson(queries=(3, 5, 9)))
    z, d = bench.zero_shot.attn_out, bench.learned("dilution").trace.attn_out
    bias = model.output_bias
    assert bias is not None
    torch.testing.assert_close(sim_aou_dilution(z, d, bias), torch.ones(3, 1, dtype=torch.float64))
    assert float(sim_aou_dilution(z, d).max()) < 0.999
    kept = 1 - demonstration_mass(bench)[:, :, 0, None]
    torch.testing.assert_close(d - bias, kept * (z - bias))


def test_models_without_a_bias_have_none() -> None:
    assert wrapped("llama").output_bias is None
    model = wrapped("gpt2")
    assert model.output_bias is not None
    assert model.output_bias.shape == (3, 32)


def outputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, 2, 8, generator=generator, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def test_the_vector_form_sees_shrinking_and_nothing_else() -> None:
    z, noise, bias = outputs(0)
    shift = bias[0]
    across = noise - (noise * (z - shift)).sum(-1, keepdim=True) / ((z - shift) ** 2).sum(-1, keepdim=True) * (
        z - shift
    )
    torch.testing.assert_close(sim_aou_dilution(z, z - 0.3 * (z - shift), shift), torch.ones(4, 2, dtype=torch.float64))
    torch.testing.assert_close(sim_aou_dilution(z, 2 * z - shift, shift), -torch.ones(4, 2, dtype=torch.float64))
    assert float(sim_aou_dilution(z, z + across, shift).abs().max()) < 1e-12


def test_orthogonal_is_blind_to_shrinking_and_sees_the_rest() -> None:
    z, first, second = outputs(1)
    bias = torch.full((2, 8), 0.5, dtype=torch.float64)
    c, g = z + first, z + second
    plain = sim_aou_orthogonal(z, c, g, bias)
    shrunk = sim_aou_orthogonal(z, c - 0.9 * (z - bias), g + 0.4 * (z - bias), bias)
    torch.testing.assert_close(plain, shrunk)
    assert not torch.allclose(sim_aou(z, c, g), sim_aou(z, c - 0.9 * (z - bias), g + 0.4 * (z - bias)))
    # By hand, in coordinates: with z along the first axis the others remain.
    z0 = torch.tensor([[[2.0, 0.0, 0.0]]])
    found = sim_aou_orthogonal(z0, z0 + torch.tensor([5.0, 3.0, 4.0]), z0 + torch.tensor([-9.0, 4.0, 3.0]))
    assert found.item() == pytest.approx(0.96)


def test_where_only_shrinking_happened_nothing_is_left() -> None:
    z, other, _ = outputs(2)
    assert sim_aou_orthogonal(z, 0.7 * z, z + other).isnan().all()
    assert sim_aou_orthogonal(z, z + other, z).isnan().all()


def test_dilution_is_a_null_that_changes_no_weight() -> None:
    bench = tiny_bench("gpt2", shots=3, queries=4)
    learned = bench.learned("dilution")
    assert learned.delta is None
    rows = rows_of(bench, "dilution")
    assert {"sim_aou", "sim_aou_dilution", "sim_aou_orthogonal", "accuracy"} <= rows.keys()
    assert not bench.model.hf.get_submodule("transformer.h.0.attn.c_proj")._forward_pre_hooks


def test_read_at_the_first_label_predictions_are_zero_shots() -> None:
    bench = tiny_bench("gpt2", shots=3, queries=4, read_at="first-label")
    learned = bench.learned("dilution")
    torch.testing.assert_close(learned.trace.label_logprobs, bench.zero_shot.label_logprobs)
    assert not torch.allclose(learned.trace.attn_out, bench.zero_shot.attn_out)
