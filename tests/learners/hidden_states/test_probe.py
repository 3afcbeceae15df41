"""The probe against the same descent written out."""

import torch

from dualscope.learners.hidden_states.probe import softmax_regression
from tests.learners.setting import tiny_bench
from tests.models import oracle as reading


def test_probe() -> None:
    bench = tiny_bench("llama", shots=6, queries=4)
    learned = bench.learned("probe", steps=5, lr=0.5)
    z = bench.zero_shot
    assert learned.delta is None
    assert learned.trace.attn_out is z.attn_out
    prompts = [[*bench.lesson.bos, *d.prompt] for d in bench.lesson.training]
    for layer in range(3):
        seen = torch.stack([reading.watch(bench.model.hf, p)[1][layer].residual[-1] for p in prompts])
        mean = seen.mean(0)
        scale = (seen - mean).square().sum(-1).mean().sqrt()
        weight = torch.zeros(2, 32, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        for _ in range(5):
            logits = (seen - mean) / scale @ weight.T + bias
            labels = torch.tensor([d.label_index for d in bench.lesson.training])
            loss = torch.nn.functional.cross_entropy(logits, labels)
            steps = torch.autograd.grad(loss, (weight, bias))
            weight, bias = ((p - 0.5 * g).detach().requires_grad_() for p, g in zip((weight, bias), steps, strict=True))
        expected = (((z.residual[:, layer] - mean) / scale) @ weight.T + bias).log_softmax(-1)
        assert learned.trace.label_logprobs_at_layer is not None
        torch.testing.assert_close(learned.trace.label_logprobs_at_layer[:, layer], expected.detach())
    at_layer = learned.trace.label_logprobs_at_layer
    assert at_layer is not None
    assert torch.equal(learned.trace.label_logprobs, at_layer[:, -1])
    same = torch.ones(1, 3, 4)
    assert softmax_regression(same, torch.tensor([0, 1, 0]), same, 2, 3, 1.0).isfinite().all()
