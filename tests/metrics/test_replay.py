"""Replay: given attention outputs cause the answers that they should."""

import pytest
import torch

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.learners import Learned, Result
from dualscope.learners.response_bench import answer_vectors
from dualscope.metrics import Case
from dualscope.metrics.measured import measure_cell
from dualscope.metrics.replay import START, along, read_replays
from dualscope.models.reading.given_outputs import replayed
from tests.learners.setting import tiny_bench, tiny_task

FAMILIES = ["gpt2", "llama", "gemma2", "gpt_neox", "opt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_icls_own_outputs_give_icls_answers(family: str) -> None:
    """Labels of one token: on further tokens the model is left to itself."""
    bench = tiny_bench(family, shots=6, task=tiny_task(labels=("Negative", "Yes"), n=100))
    icl, zero = bench.in_context, bench.zero_shot
    found = replayed(bench.model, bench.lesson, icl.attn_out)
    torch.testing.assert_close(answer_vectors(found), answer_vectors(icl.label_logprobs), rtol=0, atol=1e-9)
    if bench.model.relative_positions:  # else a query's place in the context moves the answers by itself
        same = replayed(bench.model, bench.lesson, zero.attn_out)
        torch.testing.assert_close(same, zero.label_logprobs, rtol=0, atol=1e-12)
    again = bench.model.read(bench.lesson)  # nothing is left behind
    torch.testing.assert_close(again.label_logprobs, zero.label_logprobs, rtol=0, atol=0)


def test_the_shares_by_hand() -> None:
    bench = tiny_bench(shots=6, task=tiny_task(labels=("Negative", "Yes"), n=100))
    gd = LearnerSpec("gd", lr=0.3)
    names = ["replay_along", "replay_without", "replay_along_mismatched"]
    rows = {(row["metric"], row["layer"]): row["value"] for row in measure_cell(bench, gd, metrics=names).rows}
    zero, icl, own = bench.zero_shot, bench.in_context, bench.result(gd).trace
    change, direction = icl.attn_out - zero.attn_out, own.attn_out - zero.attn_out
    start = answer_vectors(replayed(bench.model, bench.lesson, zero.attn_out))
    whole = answer_vectors(icl.label_logprobs) - start
    part = torch.zeros_like(change)
    for q in range(part.shape[0]):
        for layer in range(part.shape[1]):
            d = direction[q, layer]
            part[q, layer] = (change[q, layer] @ d) / (d @ d) * d

    def share(given: torch.Tensor) -> float:
        moved = answer_vectors(replayed(bench.model, bench.lesson, zero.attn_out + given))
        moved = moved - start
        return float((moved * whole).sum() / (whole * whole).sum())

    assert rows["replay_along", None] == pytest.approx(share(part), abs=1e-9)
    assert rows["replay_without", None] == pytest.approx(share(change - part), abs=1e-9)
    one = torch.zeros_like(part)
    one[:, 1] = part[:, 1]
    assert rows["replay_along", 1] == pytest.approx(share(one), abs=1e-9)


def test_the_learner_itself_as_the_direction_takes_all() -> None:
    change = torch.randn(3, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(along(change, change * 2), change)
    torch.testing.assert_close(along(change, torch.zeros_like(change)), torch.zeros_like(change))
    bench = tiny_bench(shots=6, task=tiny_task(labels=("Negative", "Yes"), n=100))
    icl = bench.in_context
    itself = Result(LearnerSpec("in-context-again"), "hypothesis", Learned(icl))
    case = Case(bench.zero_shot, itself, bench.result(IN_CONTEXT))
    found = read_replays(bench, case, ["replay_along", "replay_without"])
    answers = {name: answer_vectors(whole) for name, whole in found.items() if not name.endswith("/layers")}
    torch.testing.assert_close(answers["replay_along"], answer_vectors(icl.label_logprobs), rtol=0, atol=1e-9)
    torch.testing.assert_close(answers["replay_without"], answers[START], rtol=0, atol=1e-9)
    assert not measure_cell(bench, IN_CONTEXT, metrics=["replay_along"]).rows
