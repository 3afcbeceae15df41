"""What single heads do, against one sequence or one prompt at a time, in float64."""

from __future__ import annotations

import pytest
import torch

from dualscope.core.rows import MetricRow
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.learners import Bench
from dualscope.learners.hidden_states.function_vector import shuffled
from dualscope.metrics.measured import measure_cell
from dualscope.metrics.single_heads import SEQUENCES, induction_scores, repeated_sequences
from tests.learners import plain_hypotheses as plain
from tests.learners.setting import tiny_lesson, tiny_task, wrapped
from tests.models.oracle import watch
from tests.models.tiny import default_dtype

FAMILIES = ("gpt2", "llama", "gpt_neox", "bloom", "gemma2", "xglm")
Heads = dict[tuple[int, int], MetricRow]


def bench_of(family: str, spare: int = 60, shots: int = 4) -> Bench:
    model = wrapped(family)
    return Bench(model, tiny_lesson(model, task=tiny_task(n=2 * (spare + shots + 4)), shots=shots, queries=4))


def heads_of(bench: Bench, metric: str, metrics: list[str] | None = None) -> Heads:
    rows = measure_cell(bench, IN_CONTEXT, metrics=metrics, per_head=True).rows
    found = [row for row in rows if row["metric"] == metric]
    assert all(row["layer"] is not None and row["head"] is not None for row in found)
    return {(row["layer"] or 0, row["head"] or 0): row for row in found}


@pytest.mark.parametrize("family", FAMILIES)
def test_induction_score_is_the_attention_to_what_followed_the_same_token(family: str) -> None:
    bench = bench_of(family)
    model, lesson = bench.model, bench.lesson
    sequences, _ = repeated_sequences(model, lesson)
    scores = []
    with default_dtype(torch.float64):
        for tokens in sequences:
            whole = [*lesson.bos, *tokens]
            first = whole.index(tokens[-1])
            assert first < len(whole) - 1
            assert whole[first + 1 :].count(tokens[-1]) == 1  # the last token itself
            _, layers = watch(model.hf, whole)
            scores.append(torch.stack([layer.weights[:, -1, first + 1] for layer in layers]))
    expected = torch.stack(scores)
    torch.testing.assert_close(induction_scores(model, lesson), expected, rtol=1e-8, atol=1e-10)
    for (layer, head), row in heads_of(bench, "induction_score").items():
        assert row["value"] == pytest.approx(float(expected[:, layer, head].mean()), rel=1e-8)
        assert row["n"] == SEQUENCES
        assert row["low"] <= row["value"] <= row["high"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_indirect_effect_is_what_one_head_does_after_shuffled_labels(family: str) -> None:
    bench = bench_of(family, spare=8)  # as many prompts as are spare, where they are fewer than 20
    model, hf, lesson = bench.model, bench.model.hf, bench.lesson
    asked = bench.materials(len(bench.spare), "it")
    means = torch.stack(
        [plain.head_outputs(hf, [*lesson.context, *query], model.n_heads) for query in asked.queries]
    ).mean(0)
    contexts = [shuffled(lesson, i % 4).context for i in range(len(asked.queries))]
    found = heads_of(bench, "indirect_effect")
    assert len(found) == model.n_layers * model.n_heads
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        expected = plain.indirect_effect(hf, lesson, contexts, asked.queries, asked.labels, means, layer, head)
        row = found[layer, head]
        assert row["value"] == pytest.approx(expected, rel=1e-8, abs=1e-10)
        assert row["n"] == len(asked.queries)
        assert row["low"] <= row["value"] <= row["high"]


def test_who_has_them() -> None:
    """In-context learning, where heads are asked for or the metric is named; nobody else."""
    bench = bench_of("gpt2")
    assert heads_of(bench, "indirect_effect", ["accuracy"]) == {}
    assert heads_of(bench, "indirect_effect", ["indirect_effect"])
    rows = measure_cell(bench, IN_CONTEXT).rows
    rows += measure_cell(bench, LearnerSpec("task-vector", options='{"layer":1}'), per_head=True).rows
    assert not {"indirect_effect", "induction_score"} & {row["metric"] for row in rows}


def test_with_too_few_examples_there_is_no_effect_and_the_rest_is_measured() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=3, queries=4), spare=())
    assert heads_of(bench, "indirect_effect") == {}
    assert heads_of(bench, "induction_score")
