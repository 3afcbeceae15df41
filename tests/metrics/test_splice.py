"""Splices: what a run puts into itself changes nothing, what the context does does all, and plain loops agree."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.learners import Bench, Result
from dualscope.learners.response_bench import answer_vectors
from dualscope.metrics import METRICS, Case
from dualscope.metrics.measured import measure_cell
from dualscope.metrics.single_heads import induction_scores
from dualscope.metrics.splice import INDUCTION_SHARE, START, _Splicer, can_be_spliced, read_splices
from dualscope.models.architecture.parts import output_projection
from dualscope.models.reading.given_outputs import SplicedHeads
from tests.learners.setting import tiny_bench, tiny_task
from tests.models.oracle import watch

FAMILIES = ["gpt2", "llama", "gemma2", "gpt_neox", "opt", "deepseek_v3"]
GD = LearnerSpec("gd", lr=0.3)
SPLICES = [name for name in METRICS if METRICS[name].reading is read_splices]


def case_of(bench: Bench, own: Result) -> Case:
    return Case(bench.zero_shot, own, bench.result(IN_CONTEXT))


def one_token_bench(family: str = "llama", **options: Any) -> Bench:
    """Labels of one token: on further tokens the model is left to itself."""
    return tiny_bench(family, shots=4, queries=4, task=tiny_task(labels=("Negative", "Yes"), n=100), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_in_its_own_place_changes_nothing_and_the_contexts_change_does_all(family: str) -> None:
    bench = one_token_bench(family)
    splicer = _Splicer(bench, bench.result(IN_CONTEXT))
    same = splicer.spliced(None, SplicedHeads(splicer.zero))
    torch.testing.assert_close(same.label_logprobs, splicer.start.label_logprobs, rtol=0, atol=1e-10)
    same = splicer.spliced(bench.prefix, SplicedHeads(splicer.icl))
    torch.testing.assert_close(same.label_logprobs, bench.in_context.label_logprobs, rtol=0, atol=1e-10)
    given = splicer.spliced(None, SplicedHeads(splicer.icl))
    torch.testing.assert_close(given.label_logprobs, bench.in_context.label_logprobs, rtol=0, atol=1e-8)
    again = bench.model.read(bench.lesson)  # nothing is left behind
    torch.testing.assert_close(again.label_logprobs, bench.zero_shot.label_logprobs, rtol=0, atol=0)


def test_labels_of_several_tokens_are_left_alone_when_a_run_is_put_into_itself() -> None:
    bench = tiny_bench("llama")
    splicer = _Splicer(bench, bench.result(IN_CONTEXT))
    assert max(map(len, bench.lesson.answers)) > 1
    same = splicer.spliced(bench.prefix, SplicedHeads(splicer.icl))
    torch.testing.assert_close(same.label_logprobs, bench.in_context.label_logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_shares_of_the_context_itself(family: str) -> None:
    rows = measure_cell(one_token_bench(family), IN_CONTEXT, metrics=SPLICES).rows
    whole = {row["metric"]: row["value"] for row in rows if row["layer"] is None}
    for name in ("splice_in", "splice_in_read", "splice_out", "splice_out_read", "splice_out_before"):
        assert whole[name] == pytest.approx(1, abs=1e-6), name
    assert whole["splice_out_none"] == pytest.approx(0, abs=1e-6)
    assert {row["layer"] for row in rows if row["metric"] == "splice_in_head"} == {0, 1, 2}
    assert {"splice_out_labels_none", "induction_ablated", "other_heads_ablated", "splice_in_random"} <= whole.keys()
    assert "splice_out_labels" not in whole


def plainly(bench: Bench, tokens: list[int], given: dict[tuple[int, int], Tensor], note: int | None = None) -> Any:
    """The oracle's run of one whole sequence, head outputs given at (layer, place): log-probabilities of the
    labels; or, where it is read from the position ``note`` on, what heads give: by layer [tokens, heads x head_dim].
    """
    model, seen = bench.model, {}
    with ExitStack() as stack, torch.no_grad():
        for layer in range(model.n_layers):

            def hook(_: Any, args: tuple[Tensor, ...], layer: int = layer) -> tuple[Tensor, ...]:
                new = args[0].clone()
                for (where, place), outputs in given.items():
                    if where == layer:
                        new[0, place] = outputs
                seen[layer] = new[0]
                return (new, *args[1:])

            stack.callback(output_projection(model, layer).register_forward_pre_hook(hook).remove)
        logits = watch(model.hf, tokens, note or 0)[0][-1].log_softmax(-1)
    return seen if note is not None else logits[[answer[0] for answer in bench.lesson.answers]]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_one_layer_of_one_query_in_the_plain_model(layer: int) -> None:
    """The learner's change of one layer in the in-context run, on all of a query's tokens, on one, and before it."""
    bench = one_token_bench("llama")
    result = bench.result(GD)
    lesson, bos = bench.lesson, len(bench.lesson.bos)
    found = read_splices(bench, case_of(bench, result), ["splice_out", "splice_out_read", "splice_out_before"])
    for number, query in enumerate(lesson.queries):
        assert result.learned.change is not None
        with result.learned.change.applied(bench.model):
            heads = plainly(bench, [*lesson.bos, *query], {}, note=len(lesson.context) - bos)[layer]
        first, count = len(lesson.context), len(query)
        own = {(layer, first + i): heads[bos + i] for i in range(count)}
        last = {key: outputs for key, outputs in own.items() if key[1] == first + count - 1}
        before = {key: outputs for key, outputs in own.items() if key not in last}
        for name, given in (("splice_out", own), ("splice_out_read", last), ("splice_out_before", before)):
            wanted = plainly(bench, [*lesson.context, *query], given)
            torch.testing.assert_close(found[f"{name}/layers"][layer, number], wanted, rtol=0, atol=1e-9)


def test_where_positions_are_absolute_the_change_is_that_of_the_beginning() -> None:
    bench = one_token_bench("gpt2")
    result = bench.result(GD)
    lesson, bos, layer = bench.lesson, len(bench.lesson.bos), 1
    splicer = _Splicer(bench, result)
    given = splicer.learner()
    for query, tokens in zip(lesson.query_ids, lesson.queries, strict=True):
        before = plainly(bench, [*lesson.bos, *tokens], {}, note=0)[layer][bos:]
        assert result.learned.change is not None
        with result.learned.change.applied(bench.model):
            after = plainly(bench, [*lesson.bos, *tokens], {}, note=0)[layer][bos:]
        wanted = splicer.zero[query][layer] + after - before
        torch.testing.assert_close(given[query][layer], wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("learning", [IN_CONTEXT, GD])
def test_label_tokens_in_the_plain_model(learning: LearnerSpec) -> None:
    """Each demonstration alone, unchanged or as the learner changed the model, and its label tokens put into the
    context.
    """
    bench = one_token_bench("llama")
    lesson, bos, layer = bench.lesson, len(bench.lesson.bos), 1
    result = bench.result(learning)
    name = "splice_out_labels_none" if learning == IN_CONTEXT else "splice_out_labels"
    found = read_splices(bench, case_of(bench, result), [name])[f"{name}/layers"][layer]
    given = {}
    for shown in lesson.demonstrations:
        row = [*lesson.bos, *shown.prompt, *shown.label]
        if learning == IN_CONTEXT:
            heads = plainly(bench, row, {}, note=shown.start - bos)[layer]
        else:
            assert result.learned.change is not None
            with result.learned.change.applied(bench.model):
                heads = plainly(bench, row, {}, note=shown.start - bos)[layer]
        for i in range(len(shown.label)):
            given[layer, shown.start + len(shown.prompt) + i] = heads[bos + len(shown.prompt) + i]
    wanted = torch.stack([plainly(bench, [*lesson.context, *query], given) for query in lesson.queries])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert float((wanted - bench.in_context.label_logprobs).abs().max()) > 1e-4


def test_the_shares_by_hand() -> None:
    bench = one_token_bench()
    found = read_splices(bench, case_of(bench, bench.result(GD)), ["splice_in"])
    rows = {(row["metric"], row["layer"]): row["value"] for row in measure_cell(bench, GD, metrics=["splice_in"]).rows}
    start = answer_vectors(found[START])
    whole = answer_vectors(bench.in_context.label_logprobs) - start
    for layer, answers in ((None, found["splice_in"]), (2, found["splice_in/layers"][2])):
        moved = answer_vectors(answers) - start
        assert rows["splice_in", layer] == pytest.approx(
            float((moved * whole).sum() / (whole * whole).sum()), abs=1e-12
        )


def test_a_random_change_has_the_learners_size_token_by_token_and_head_by_head() -> None:
    bench = one_token_bench()
    splicer = _Splicer(bench, bench.result(GD))
    given = splicer.learner()
    random = splicer.random(given)
    for query in bench.lesson.query_ids:
        for zero, own, drawn in zip(splicer.zero[query], given[query], random[query], strict=True):
            sizes = [(one - zero).unflatten(-1, (4, -1)).norm(dim=-1) for one in (own, drawn)]
            torch.testing.assert_close(*sizes)
            assert not torch.allclose(own, drawn)


def test_induction_heads_are_those_that_repeat_most() -> None:
    bench = one_token_bench()
    scores = induction_scores(bench.model, bench.lesson).mean(0)
    count = max(1, round(INDUCTION_SHARE * scores.numel()))
    chosen = scores.flatten().argsort(descending=True)[:count].tolist()
    splicer = _Splicer(bench, bench.result(IN_CONTEXT))
    found = splicer.ablated(["induction_ablated"])["induction_ablated"]
    heads = bench.model.n_heads
    for number, (query, tokens) in enumerate(zip(bench.lesson.query_ids, bench.lesson.queries, strict=True)):
        first, last = len(bench.lesson.context), len(tokens)
        given: dict[tuple[int, int], Tensor] = {}
        for layer in sorted({index // heads for index in chosen}):
            own = splicer.icl[query][layer].clone().unflatten(-1, (heads, -1))
            for index in chosen:
                if index // heads == layer:
                    own[:, index % heads] = splicer.zero[query][layer].unflatten(-1, (heads, -1))[:, index % heads]
            given |= {(layer, first + i): own.flatten(-2)[i] for i in range(last)}
        if len({index // heads for index in chosen}) == 1:  # above it the other heads see another stream
            wanted = plainly(bench, [*bench.lesson.context, *tokens], given)
            torch.testing.assert_close(found[number], wanted, rtol=0, atol=1e-9)


def test_natural_residuals_are_at_1_and_a_pushed_one_is_far() -> None:
    bench = one_token_bench()
    splicer = _Splicer(bench, bench.result(IN_CONTEXT))
    usual = torch.stack([splicer.distance(splicer.start), splicer.distance(splicer.end)])
    assert float(usual.median()) == pytest.approx(1, abs=0.3)
    far = splicer.start.map(lambda values: values + 100 if values.is_floating_point() else values)
    assert float(splicer.distance(far).min()) > 10


def test_who_cannot_be_spliced_has_no_rows() -> None:
    bench = one_token_bench()
    for learning in (LearnerSpec("zero-shot"), LearnerSpec("dilution"), LearnerSpec("null-context")):
        assert not can_be_spliced(bench.result(learning))
        assert measure_cell(bench, learning, metrics=SPLICES).rows == []


@pytest.mark.slow
def test_a_random_change_does_nothing_on_the_embedded_model() -> None:
    from dualscope import compare

    found = compare("embedded", "embedded-sst2", "gd", shots=16, queries=100, lr=1.0, metrics=["splice_in_random"])
    values = [row["value"] for row in found.rows if row["layer"] is None]
    assert len(values) == 2
    assert max(map(abs, values)) <= 0.05
