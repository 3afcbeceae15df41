"""A model whose layers live on several devices.

Where there is a CUDA device, a model split over it and the CPU gives the numbers of the unsplit one.
"""

import pytest
import torch
from accelerate import dispatch_model

from dualscope.learners import LEARNERS, Bench
from dualscope.models import Model
from dualscope.models.placement import split
from tests.learners import oracle
from tests.learners.setting import wrapped
from tests.models.pretended import LR, WANT, lessons

FAMILIES = ["gpt2", "llama", "gpt_neox", "xglm", "gemma2", "bloom"]


def test_blocks_are_shared_out_in_order() -> None:
    hf = wrapped("llama").hf
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    places = split(hf, [first, second])
    assert [places[f"model.layers.{i}"] for i in range(3)] == [first, first, second]
    assert places["model.embed_tokens"] == first
    assert places["model.norm"] == second
    tied = hf.get_input_embeddings().weight is hf.get_output_embeddings().weight
    assert places["lm_head"] == (first if tied else second)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("learner", list(LEARNERS))
def test_split_over_cuda_and_cpu(family: str, learner: str) -> None:
    whole = wrapped(family)
    wanted = Bench(whole, want=WANT, **lessons(whole)).learned(learner, LR)
    places = split(whole.hf, [torch.device("cuda:0"), torch.device("cpu")])
    lesson = lessons(whole)
    hf = dispatch_model(whole.hf, {name: str(place) for name, place in places.items()}, force_hooks=True)
    found = Bench(Model(hf, whole.tokenizer), want=WANT, **lesson).learned(learner, LR)
    for name in ("attn_out", "attn_scores", "label_logprobs", "residual"):
        pair = (getattr(found.trace, name).cpu(), getattr(wanted.trace, name))
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5, equal_nan=True)
    if wanted.delta is not None and found.delta is not None:
        assert oracle.worst(found.delta.to("cpu"), dict(wanted.delta)) <= 1e-5
