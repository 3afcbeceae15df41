"""The key and value weights: the right slices of the right matrices, in one shape for every architecture."""

import pytest
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from tests.models.lessons import random_lesson
from tests.models.tiny import FAMILIES, tiny_model
from tests.models.unlisted import unlisted_model

TOKENS = torch.tensor([random_lesson().context])
NORMED_KEYS = ("qwen3", "gemma3_text", "olmo2")  # these norm the keys before they are used


def kept(model: Model) -> Session:
    session = Session(keep=True, read=0, want=frozenset({"layer_inputs", "query_vectors"}))
    with torch.no_grad(), model.running(), capturing(model, session):
        model.forward(TOKENS)
    return session


def rows(states: Tensor) -> Tensor:
    """[1, kv_heads, tokens, dim] -> [tokens, kv_heads * dim]."""
    return states[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_the_projections(family: str) -> None:
    """value = input V^T + bias, and so are the keys at position 0, where a rotation is the identity."""
    hf, tokenizer = tiny_model(family, torch.float64)
    model = Model(hf, tokenizer)
    session, parameters = kept(model), dict(hf.named_parameters())
    for layer in range(model.n_layers):
        parts = {part.name.split(".", 2)[2]: part for part in model.parts([layer])}
        matrix = {name: part.get(parameters[part.parameter]) for name, part in parts.items()}
        at_start = session.seen["layer_inputs"][layer][0]  # [width]
        key, value = session.kept[layer]
        for role, states in (("key", key), ("value", value)):
            assert matrix[f"{role}.weight"].shape == (states.shape[1] * states.shape[3], model.width)
            expected = matrix[f"{role}.weight"] @ at_start + matrix.get(f"{role}.bias", 0)
            if role == "value" or family not in NORMED_KEYS:
                assert torch.allclose(rows(states)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_change_of_one_part_changes_that_part_alone(family: str) -> None:
    hf, tokenizer = tiny_model(family, torch.float64)
    model, layer = Model(hf, tokenizer), 1
    parameters = dict(hf.named_parameters())
    before = kept(model)
    for part in model.parts([layer]):
        tensor = parameters[part.parameter].data
        saved = tensor.clone()
        change = torch.randn(part.get(tensor).shape, dtype=tensor.dtype)
        part.add_(tensor, change)
        assert torch.equal(part.get(tensor - saved).abs() > 0, change != 0)
        after = kept(model)
        tensor.copy_(saved)
        key_same, value_same = (
            torch.equal(a, b) for a, b in zip(before.kept[layer], after.kept[layer], strict=True)
        )
        assert (key_same, value_same) == (part.role != "key", part.role != "value"), part.name
        queries = [session.seen["query_vectors"][layer] for session in (before, after)]
        assert torch.equal(*queries), part.name
        assert torch.equal(before.kept[0][0], after.kept[0][0])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_seen_in_the_same_shape(family: str) -> None:
    """d(sum of values)/dV is the sum of the inputs in every row; nothing reaches the keys from there."""
    hf, tokenizer = tiny_model(family, torch.float64)
    model = Model(hf, tokenizer)
    session = Session(keep=True, want=frozenset({"layer_inputs"}))
    inputs: list[Tensor] = []
    target = model.attentions[0].get_submodule(model.family.fused or model.family.value)
    handle = target.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with model.running(), capturing(model, session):
        model.forward(TOKENS)
    handle.remove()
    session.kept[0][1].sum().backward()
    parameters = dict(hf.named_parameters())
    for part in model.parts([0]):
        gradient = parameters[part.parameter].grad
        if part.role == "key":
            assert gradient is None or not part.get(gradient).any()
        elif part.kind == "weight":
            expected = inputs[0][0].sum(0).expand(part.get(gradient).shape)
            assert torch.allclose(part.get(gradient), expected)
        else:
            assert torch.allclose(part.get(gradient), torch.full_like(part.get(gradient), TOKENS.shape[1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_set_writes_what_get_reads(family: str) -> None:
    hf, tokenizer = tiny_model(family)
    model = Model(hf, tokenizer)
    parameters = dict(hf.named_parameters())
    for part in model.parts(roles=("query", "key", "value")):
        tensor = parameters[part.parameter].data
        value = torch.randn(part.get(tensor).shape)
        part.set_(tensor, value)
        assert torch.equal(part.get(tensor), value)


def test_a_fused_matrix_of_unknown_layout_is_refused() -> None:
    hf, tokenizer = unlisted_model(
        "gpt_bigcode"
    )  # one key and value head for all queries: one possible order
    assert [part.rows for part in Model(hf, tokenizer).parts([0])] == [(32, 40)] * 2 + [(40, 48)] * 2
    hf, tokenizer = unlisted_model("gpt_bigcode", multi_query=False)
    with pytest.raises(InputError, match=r"gpt_bigcode.*c_attn.*cannot be told"):
        Model(hf, tokenizer)
    hf, tokenizer = tiny_model("phi3")
    hf.config.num_key_value_heads = 1
    with pytest.raises(InputError, match=r"qkv_proj.*does not have the 48 rows"):
        Model(hf, tokenizer).parts()
