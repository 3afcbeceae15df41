"""A model with an attention kind is measured with that kind, after a shared context too."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dualscope.models import Model
from dualscope.models.attention_kinds import apply
from tests.models.attention_kinds.test_install import kind_of
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model

KINDS: list[dict[str, Any]] = [
    {"name": "softmax"},
    {"name": "momentum", "eta": 0.7},
    {"name": "negative", "k": 2, "beta": 0.3},
    {"name": "regularized", "alpha": 0.4},
    {"name": "regularized", "alpha": 0.4, "form": "dual"},
    {"name": "augmented"},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gpt_neox"])
def test_captured_is_the_model_itself(family: str, options: dict[str, Any]) -> None:
    hf, tokenizer = tiny_model(family, torch.float64)
    torch.manual_seed(0)
    apply(hf, options)
    for name, parameter in hf.named_parameters():
        if "adapters" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model = Model(hf, tokenizer)
    lesson = random_lesson(queries=(3, 5, 5, 12), answers=((16,), (19, 17)))
    trace = model.read(lesson, model.prefix(lesson.context), want=frozenset({"mass"}), batch_size=1)
    batched = model.read(lesson, model.prefix(lesson.context))
    assert torch.allclose(trace.label_logprobs, batched.label_logprobs, rtol=1e-10)
    for i, prompt in enumerate(lesson.queries):
        for label, answer in enumerate(lesson.answers):
            tokens = torch.tensor([[*lesson.context, *prompt, *answer]])
            with torch.no_grad():
                logprobs = hf(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
            rows = torch.arange(tokens.shape[1] - len(answer) - 1, tokens.shape[1] - 1)
            wanted = logprobs[rows, torch.tensor(answer)].mean()
            assert abs(trace.label_logprobs[i, label] - wanted) < 1e-9
    if options["name"] == "softmax":
        plain = Model(*tiny_model(family, torch.float64))
        same = plain.read(lesson, plain.prefix(lesson.context), want=frozenset({"mass"}))
        assert torch.allclose(same.extras["demo_mass"], trace.extras["demo_mass"])


def test_load_restores_what_config_records(tmp_path: Path) -> None:
    hf, tokenizer = tiny_model("gpt2")
    apply(hf, {"name": "augmented"})
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = Model.load(str(tmp_path), device="cpu")
    assert kind_of(model.hf) == kind_of(hf)
    assert all(torch.equal(a, b) for a, b in zip(model.hf.parameters(), hf.parameters(), strict=True))
    drawn = Model.load(str(tmp_path), device="cpu", variant="untrained", init_seed=1)
    again = Model.load(str(tmp_path), device="cpu", variant="untrained", init_seed=1)
    pairs = list(zip(drawn.hf.named_parameters(), again.hf.parameters(), hf.parameters(), strict=True))
    assert all(torch.equal(a, b) for (_, a), b, _ in pairs)
    assert [name for (name, a), _, old in pairs if torch.equal(a, old) and a.any() and "ln" not in name] == []
