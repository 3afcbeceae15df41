"""W_ICL against W_FT: plain loops; where they are the same by construction; where they have nothing in common."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench, Delta
from dualscope.learners.response_bench import ResponseBench, centred
from dualscope.metrics.icl_update import OF_QUERIES, RESPONSES, FactoredUpdate, matrix_rank, moved, of_queries
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.theory.icl_dual import HeadWeights, dw_finetuned, dw_icl
from dualscope.theory.identity import Draw
from dualscope.theory.linear_layer import Recipe, descend, squared
from tests.learners.setting import tiny_bench, tiny_task

GD = LearnerSpec("gd", lr=0.3)


def keys_and_values(model: Model, tokens: list[int], start: int) -> list[tuple[Tensor, Tensor]]:
    """What Hugging Face's own cache holds of one sequence: by layer [heads, tokens, width], keys with positions."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([tokens]), "use_cache": True}
    inputs["position_ids"] = torch.arange(start, start + len(tokens))[None]
    with torch.no_grad():
        cache = model.hf(**inputs).past_key_values
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def summed(pairs: list[tuple[Tensor, Tensor]], first: int) -> list[Tensor]:
    """The sum of v k^T over tokens from ``first`` on, one outer product after the other: [heads, width, width]."""
    found = []
    for keys, values in pairs:
        total = torch.zeros(len(keys), values.shape[-1], keys.shape[-1], dtype=torch.float64)
        for head in range(len(keys)):
            for token in range(first, keys.shape[1]):
                total[head] += torch.outer(values[head, token].double(), keys[head, token].double())
        found.append(total)
    return found


def plain_updates(bench: Bench, delta: Delta) -> tuple[list[Tensor], list[list[Tensor]]]:
    """dW_ICL by layer, and dW_FT by query and layer."""
    model, lesson = bench.model, bench.lesson
    bos = len(lesson.bos)
    icl = summed(keys_and_values(model, list(lesson.context), 0), bos)
    start = len(lesson.context) - bos if model.relative_positions else 0
    ft = []
    for query in lesson.queries:
        row = [*lesson.bos, *query]
        before = summed(keys_and_values(model, row, start), bos)
        with delta.applied(model):
            after = summed(keys_and_values(model, row, start), bos)
        ft.append([b - a for a, b in zip(before, after, strict=True)])
    return icl, ft


def cosine(left: Tensor, right: Tensor) -> float:
    return float((left * right).sum() / (left.norm() * right.norm()))


def effective_rank(matrix: Tensor) -> float:
    s = torch.linalg.svdvals(matrix)
    return float(s.square().sum() ** 2 / s.pow(4).sum())


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "qwen2", "opt"])
def test_one_head_and_query_at_a_time(family: str) -> None:
    """Absolute and rotary positions, heads that share keys, fused matrices, queries of several lengths in a batch.

    To 1e-7, because Hugging Face's own softmax is float32 inside.
    """
    bench = tiny_bench(family, shots=4, queries=5, task=tiny_task(labels=("Negative", "Yes")))
    delta = bench.result(GD).learned.delta
    assert delta is not None
    icl, ft = plain_updates(bench, delta)
    found = measure_cell(
        bench, GD, metrics=["sim_w", "sim_w_other_layer", "rank_w_ft", "rank_w_icl"], per_head=True
    ).rows
    rows = {(row["metric"], row["layer"], row["head"]): row["value"] for row in found}
    layers, heads = len(icl), len(icl[0])
    for layer in range(layers):
        for head in range(heads):
            own = [query[layer][head] for query in ft]
            wanted = sum(cosine(icl[layer][head], one) for one in own) / len(own)
            assert rows["sim_w", layer, head] == pytest.approx(wanted, abs=1e-7)
            others = [cosine(icl[other][head], one) for one in own for other in range(layers) if other != layer]
            assert rows["sim_w_other_layer", layer, head] == pytest.approx(sum(others) / len(others), abs=1e-7)
            rank = sum(map(effective_rank, own)) / len(own)
            assert rows["rank_w_ft", layer, head] == pytest.approx(rank, rel=1e-6)
            assert rows["rank_w_icl", layer, head] == pytest.approx(effective_rank(icl[layer][head]), rel=1e-6)
    assert rows["sim_w", None, None] == pytest.approx(
        sum(rows["sim_w", layer, head] for layer in range(layers) for head in range(heads)) / (layers * heads)
    )


def test_another_querys_update_has_the_same_mean() -> None:
    """What the metric says of itself: dW_ICL is the same for all queries."""
    bench = tiny_bench("llama")
    rows = measure_cell(bench, GD, metrics=["sim_w", "sim_w_mismatched"]).rows
    means = {row["metric"]: row["value"] for row in rows if row["layer"] is None}
    assert means["sim_w"] == pytest.approx(means["sim_w_mismatched"], abs=1e-12)


def test_where_learning_is_the_update_they_are_one() -> None:
    """Linear attention over examples of a linear layer, values the errors of its descent (theory/linear_layer): the
    context's update is the change of the weight; so is that of the query's tokens where these span the inputs evenly.
    """
    draw = Draw(0)
    inputs, targets, start = draw.normal(20, 6), draw.normal(20, 4), draw.normal(4, 6)
    moved_weight = descend(start, inputs, targets, squared, Recipe.full(20, 1, lr=0.3))
    errors = 0.3 * (targets - inputs @ start.T) / 20
    context = [(errors.T @ inputs)[None]]
    own = torch.linalg.qr(draw.normal(6, 6)).Q  # tokens of the query: any orthonormal ones
    before, after = (own[None], (own @ start.T)[None]), (own[None], (own @ moved_weight.T)[None])
    update = FactoredUpdate.of_change(before, after, torch.ones(1, 6))
    found = of_queries(context, iter([([0], [FactoredUpdate(update.values[None], update.keys[None])])]), 1)
    assert float(found["sim_w"]) == pytest.approx(1.0, abs=1e-12)
    assert float(found["rank_w_ft"]) == pytest.approx(float(found["rank_w_icl"]), rel=1e-9)


def test_the_identities_of_theory_are_the_same_sums() -> None:
    draw = Draw(1)
    heads, change = HeadWeights.draw(draw), HeadWeights.draw(draw)
    own, shown = draw.normal(9, 12), draw.normal(30, 12)
    keys, values = own @ heads.key.mT, own @ heads.value.mT
    new = own @ (heads.key + change.key).mT, own @ (heads.value + change.value).mT
    update = FactoredUpdate.of_change((keys, values), new, torch.ones(1, 9))
    wanted = dw_finetuned(heads, change.key, change.value, own)
    torch.testing.assert_close(update.matrix(), wanted)
    torch.testing.assert_close(update.square_norm(), wanted.square().sum((-2, -1)))
    torch.testing.assert_close(update.product(dw_icl(heads, shown)), (wanted * dw_icl(heads, shown)).sum((-2, -1)))
    torch.testing.assert_close(update.rank(), matrix_rank(wanted))


def test_unrelated_updates_of_wide_heads_are_at_0() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    context = [drawn(16, 128, 40) @ drawn(16, 40, 128)]
    updates = [FactoredUpdate(drawn(8, 16, 30, 128), drawn(8, 16, 30, 128))]
    found = of_queries(context, iter([(list(range(8)), updates)]), 8)
    assert abs(float(found["sim_w"].mean())) < 0.01


def test_a_small_change_is_not_lost_in_a_large_sum() -> None:
    """v' k'^T - v k^T as a difference of the sums would have no digit left."""
    draw = Draw(2)
    keys, values, by = draw.normal(1, 9, 8), draw.normal(1, 9, 8), draw.normal(1, 9, 8)
    tiny = FactoredUpdate.of_change((keys, values), (keys, values + 1e-12 * by), torch.ones(1, 9))
    torch.testing.assert_close(tiny.square_norm().sqrt(), 1e-12 * (by.mT @ keys).norm()[None], rtol=1e-3, atol=0)


def test_the_response_draw_by_draw() -> None:
    """Against matrices that are written out, of every draw and query."""
    bench = tiny_bench("llama", shots=8, queries=3, task=tiny_task(n=100), balanced=True)
    measured = measure_cell(bench, GD, metrics=[*OF_QUERIES, *RESPONSES])
    rows = {(r["metric"], r["layer"]): r["value"] for r in measured.rows}
    draws = ResponseBench(bench, "relabel", 12).draws
    icl, ft = [], []
    for draw in draws:
        altered = bench.with_lesson(draw.lesson)
        delta = altered.result(GD).learned.delta
        assert delta is not None
        theirs, ours = plain_updates(altered, delta)
        icl.append(torch.stack(theirs))
        ft.append(torch.stack([torch.stack(query) for query in ours]).mean(0))
    levels = [draw.level for draw in draws]
    r, s = centred(torch.stack(icl), levels), centred(torch.stack(ft), levels)
    for layer in range(r.shape[1]):
        assert rows["response_w", layer] == pytest.approx(cosine(r[:, layer], s[:, layer]), abs=1e-6)
        crossed = [cosine(r[:, layer], s[:, other]) for other in range(r.shape[1]) if other != layer]
        assert rows["response_w_other_layer", layer] == pytest.approx(sum(crossed) / len(crossed), abs=1e-6)


def test_what_does_not_move_has_no_response() -> None:
    updates = torch.ones(4, 2, 3, 3) + 1e-9 * torch.randn(4, 2, 3, 3)
    assert moved(updates, ["chance"] * 4, epsilon=1e-7).isnan().all()
    assert not moved(torch.randn(4, 2, 3, 3), ["chance"] * 4, epsilon=1e-7).isnan().any()


def test_learners_that_change_no_weights_have_no_rows() -> None:
    bench = tiny_bench("llama")
    for learning in (LearnerSpec("zero-shot"), LearnerSpec("in-context"), LearnerSpec("dilution")):
        assert measure_cell(bench, learning, metrics=["sim_w"]).rows == []
