"""More than sixty decoder architectures of transformers: each *passes*, against the oracle, or is *refused because*."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.descent.delta import Delta
from dualscope.learners import Bench
from dualscope.models import Model
from dualscope.models.architecture.families import BY_STRUCTURE, FAMILIES
from dualscope.tasks import Lesson
from tests.learners.oracle import cross_entropy
from tests.learners.setting import tiny_lesson
from tests.models import oracle, tiny
from tests.models.lessons import random_lesson
from tests.models.reading.test_read import assert_same, relative
from tests.models.tiny import random_model, tiny_tokenizer
from tests.models.unlisted import PASSES, REFUSED

EVERY = {family: (family, config) for family, config in tiny.CONFIGS.items()} | PASSES
RATE = 0.3


NAMED = (
    *(
        "stablelm",
        "granite",
        "cohere",
        "starcoder2",
        "phi",
        "olmo",
        "olmo2",
        "olmo3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
    ),
    *("gpt_bigcode", "gpt_oss", "nemotron", "smollm3", "glm", "falcon", "mpt", "codegen", "persimmon", "deepseek_v3"),
    *("jamba", "mamba", "recurrent_gemma", "llama4_text"),
)
"""What people are known to bring: none of them may drop out of the lists unnoticed."""


def small_lesson() -> Lesson:
    return random_lesson(queries=(3, 12), answers=((16,), (19, 16)), shots=3)


def tolerance(hf: Any) -> float:
    """Routers of experts compute in float32, whatever the model, and sum in another order in another batch."""
    return 1e-6 if getattr(hf.config, "num_experts_per_tok", None) else 1e-10


def test_what_people_bring_is_judged() -> None:
    judged = {kind for kind, _ in EVERY.values()} | set(REFUSED)
    assert set(NAMED) <= judged
    assert len(judged) >= 40


@pytest.mark.parametrize("name", EVERY)
def test_passes(name: str) -> None:
    """Traces without and with a context, and after a step of gradient descent, are the oracle's; so is the step."""
    kind, config = EVERY[name]
    hf, lesson = random_model(kind, config, torch.float64), small_lesson()
    limit = tolerance(hf)
    bench = Bench(Model(hf, tiny_tokenizer(), name=name), lesson, want=frozenset({"exits", "mass", "kendall"}))
    assert_same(bench.in_context, oracle.oracle(hf, lesson, lesson.context), limit)
    moved = bench.model.read(lesson, want=bench.read_want, position_offset=40)
    assert_same(moved, oracle.oracle(hf, lesson, lesson.bos, 40), limit)

    taught = tiny_lesson(bench.model, shots=1, queries=2)
    bench = Bench(bench.model, taught)
    learned = bench.learned("gd", RATE)
    assert learned.delta is not None
    expected = steps(hf, taught)
    whole = torch.stack([change.norm() for changes in expected.values() for change in changes.values()]).norm()
    for role, changes in expected.items():
        own = Delta({part: change for part, change in learned.delta.items() if f".{role}." in part})
        found = own.in_full(bench.model)
        assert set(found) == set(changes)
        for parameter, change in changes.items():
            gap = (found[parameter] - change).norm() / change.norm().clamp_min(1e-6 * whole)
            assert gap <= 10 * limit, f"{role}: {parameter}"
    after = copy.deepcopy(hf)
    with torch.no_grad():
        for changes in expected.values():
            for parameter, change in changes.items():
                after.get_parameter(parameter).add_(change)
    wanted = oracle.oracle(after, taught, taught.bos)
    for field in ("attn_out", "residual", "label_logprobs"):
        assert relative(getattr(learned.trace, field), wanted[field]) <= 10 * limit, field


def steps(hf: Any, lesson: Lesson) -> dict[str, dict[str, Tensor]]:
    """One step on the first demonstration, of keys and of values, by autograd over the plain model.

    Which rows of a fused matrix those are, its own keys and values tell: the rows that they have a gradient of.
    """
    place = oracle.PLACES.get(hf.config.model_type, oracle.Place())
    demonstration = lesson.training[0]
    tokens = [*lesson.bos, *demonstration.prompt, *demonstration.label]
    changes: dict[str, dict[str, Tensor]] = {"key": {}, "value": {}}
    with torch.enable_grad():
        logits, layers = oracle.watch_with_gradients(hf, tokens)
        loss = cross_entropy(logits, tokens, 1)
        for number, layer in enumerate(layers):
            path = f"{place.blocks}.{number}.{place.attention}"
            for role, leaf, states in (("key", place.keys, layer.key), ("value", place.values, layer.value)):
                projection = hf.get_submodule(f"{path}.{leaf}")
                direction = torch.randn(states.shape, dtype=states.dtype)
                for kind, parameter in projection.named_parameters():
                    (own,) = torch.autograd.grad((states * direction).sum(), parameter, retain_graph=True)
                    (slope,) = torch.autograd.grad(loss, parameter, retain_graph=True)
                    change = torch.where(rows_with(own, projection), -RATE * slope, 0.0)
                    changes[role][f"{path}.{leaf}.{kind}"] = change
    return changes


def rows_with(gradient: Tensor, projection: nn.Module) -> Tensor:
    """True in every row (output) of a weight that has a gradient, [out, in], [in, out] or [out]."""
    touched = gradient != 0
    if gradient.ndim == 1:
        return touched
    inputs = 1 if isinstance(projection, nn.Linear) else 0  # GPT-2's Conv1D is transposed
    return touched.any(inputs, keepdim=True).expand_as(touched)


@pytest.mark.parametrize("name", EVERY)
def test_what_attention_adds_is_known_in_every_block(name: str) -> None:
    """An identity: without context, each MLP patched with what the context changed there, a model says what it says in
    context. It fails where what attention adds to the residual stream is taken from a wrong place.
    """
    kind, config = EVERY[name]
    model = Model(random_model(kind, config, torch.float64), tiny_tokenizer(), name=name)
    bench = Bench(model, tiny_lesson(model, shots=2, queries=2))
    if any(".experts." in parameter for parameter, _ in model.hf.named_parameters()):
        with pytest.raises(InputError, match="has no MLP of one or two input projections"):
            bench.learned("context-patch")
        return
    patched, wanted = bench.learned("context-patch").trace, bench.in_context
    assert relative(patched.label_logprobs, wanted.label_logprobs) <= 1e-9
    assert relative(patched.residual, wanted.residual) <= 1e-9


@pytest.mark.parametrize("name", REFUSED)
def test_refused_because(name: str) -> None:
    kind, config, reason = REFUSED[name]
    hf, lesson = random_model(kind, config), small_lesson()
    with pytest.raises(InputError, match=reason):
        _ = Bench(Model(hf, tiny_tokenizer(), name=name), lesson).in_context


def test_all_that_is_said_to_be_supported_is_here() -> None:
    """``list models`` and the documentation name what passes, and nothing else."""
    passing = {kind for kind, _ in EVERY.values()}
    assert passing == {name for name in FAMILIES if FAMILIES[name].tested} | set(BY_STRUCTURE)
    assert len(passing) >= 40
    assert len(passing | {kind for kind, _, _ in REFUSED.values()}) >= 60


def test_a_prompt_longer_than_a_chunk_is_refused() -> None:
    """Llama 4 in its first chunk is like any other model, and its chunk is how far it sees; beyond, it is refused."""
    kind, config = PASSES["llama4_text"]
    model = Model(random_model(kind, config), tiny_tokenizer())
    assert model.max_positions == 128
    small = Model(random_model(kind, config | {"attention_chunk_size": 16}), tiny_tokenizer())
    with pytest.raises(InputError, match="the architecture 'llama4_text' cannot be measured"):
        _ = Bench(small, small_lesson()).in_context


def test_what_stands_between_the_last_layer_and_the_logits_must_be_known() -> None:
    kind, config = PASSES["stablelm"]
    model = Model(random_model(kind, config), tiny_tokenizer())
    model.family = replace(model.family, final=())  # as if the norm had an unfamiliar place
    with pytest.raises(InputError, match=r"its last layer, read off .* differs by .* from its logits"):
        _ = Bench(model, small_lesson()).in_context
