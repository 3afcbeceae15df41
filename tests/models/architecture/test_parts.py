"""The key and value weights: the right slices of the right matrices, in one shape for every architecture."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.architecture import families
from dualscope.models.architecture.parts import Rows
from dualscope.models.capture import attention_kernel
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.parity import assure
from tests.models.lessons import random_lesson
from tests.models.tiny import CONFIGS, FAMILIES, random_model, tiny_model

TOKENS = torch.tensor([random_lesson().context])
NORMED_KEYS = ("qwen3", "gemma3_text", "olmo2", "persimmon")  # these norm the keys before they are used


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
    """value = input V^T + bias, and so are the keys at position 0, where a rotation is the identity.

    In latent attention (DeepSeek) the input is the compressed one, and the projection gives a key's first
    dimensions.
    """
    hf, tokenizer = tiny_model(family, torch.float64)
    model = Model(hf, tokenizer)
    session, parameters = kept(model), dict(hf.named_parameters())
    for layer in range(model.n_layers):
        parts = {part.name.split(".", 2)[2]: part for part in model.parts([layer])}
        matrix = {name: part.get(parameters[part.parameter]) for name, part in parts.items()}
        at_start = session.seen["layer_inputs"][layer][0]  # [width]
        key, value = session.kept[layer]
        for role, states in (("key", key), ("value", value)):
            width = matrix[f"{role}.weight"].shape[0] // states.shape[1]
            if family != "deepseek_v3":
                assert matrix[f"{role}.weight"].shape == (states.shape[1] * states.shape[3], model.width)
            states = states[..., :width]
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
        key_same, value_same = (torch.equal(a, b) for a, b in zip(before.kept[layer], after.kept[layer], strict=True))
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
            expected = inputs[0][0].flatten(0, -2).sum(0).expand(part.get(gradient).shape)
            assert torch.allclose(part.get(gradient), expected)
        else:
            assert torch.allclose(part.get(gradient), torch.full_like(part.get(gradient), TOKENS.shape[1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_add_changes_what_get_reads(family: str) -> None:
    hf, tokenizer = tiny_model(family)
    model = Model(hf, tokenizer)
    parameters = dict(hf.named_parameters())
    for part in model.parts(roles=("query", "key", "value")):
        tensor = parameters[part.parameter].data
        before = part.get(tensor).clone()
        change = torch.randn(before.shape)
        part.add_(tensor, change)
        assert torch.equal(part.get(tensor), before + change)


def test_rows_of_shared_and_of_own_keys() -> None:
    """GPT-BigCode keeps one key and value after all queries, or else query, key and value head by head."""
    shared = Model(*tiny_model("gpt_bigcode")).parts([0], roles=("query", "key", "value"))
    assert [(part.role, part.rows) for part in shared if part.kind == "weight"] == [
        ("query", Rows(1, 48, 0, 32)),
        ("key", Rows(1, 48, 32, 40)),
        ("value", Rows(1, 48, 40, 48)),
    ]
    own = Model(*tiny_model("gpt_bigcode", multi_query=False)).parts([0])
    assert own[0].rows == Rows(blocks=4, size=24, first=8, last=16)


def test_a_fused_matrix_of_unknown_layout_is_refused() -> None:
    japanese = random_model("gpt_neox_japanese", CONFIGS["gpt_neox"])
    with pytest.raises(InputError, match=r"gpt_neox_japanese.*query_key_value.*cannot be told"):
        Model(japanese, None)
    hf, tokenizer = tiny_model("phi3")
    hf.config.num_key_value_heads = 1
    with pytest.raises(InputError, match=r"fused='qkv_proj' has 64 rows.*are 48; its layout is another"):
        Model(hf, tokenizer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"blocks": "transformer.blocks"},
            r"blocks='transformer.blocks' is not in GPT2LMHeadModel: did you mean transf",
        ),
        ({"blocks": "transformer.wte"}, r"blocks='transformer.wte' is a Embedding, and a list of blocks"),
        ({"attention": "attention"}, r"attention='attention' is not in GPT2Block: .*attn"),
        ({"output": "o_proj"}, r"output='o_proj' is not in GPT2Attention: .*c_proj"),
        ({"fused": None}, r"query='q_proj' is not in GPT2Attention"),
        ({"fused": "attn_dropout"}, r"fused='attn_dropout' is a Dropout, which has no weight"),
        ({"fused": "c_proj"}, r"fused='c_proj' has 32 rows, and stacked rows .* are 96"),
        ({"final": ("transformer.norm",)}, r"final='transformer.norm' is not in GPT2LMHeadModel"),
        ({"layout": "sideways"}, r"layout='sideways' is not accepted; accepted: stacked, interleaved"),
        ({"positions": "learned"}, r"positions='learned' is not accepted; accepted: absolute, rotary, alibi"),
        ({"adapter": "mine"}, r"adapter='mine' is not accepted; accepted: .*xglm"),
    ],
)
def test_an_entry_that_does_not_fit_fails_with_words(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(families.FAMILIES._items, "gpt2", replace(families.FAMILIES["gpt2"], **change))
    with pytest.raises(InputError, match=rf"the family 'gpt2': {words}"):
        Model(*tiny_model("gpt2"))


def test_an_entry_that_is_no_family_fails_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.FAMILIES._items, "gpt2", {"blocks": "transformer.h"})
    with pytest.raises(InputError, match="the entry of 'gpt2' in the family table is a dict, not a Family"):
        Model(*tiny_model("gpt2"))


def test_an_entry_of_ones_own_is_tried_at_every_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path may exist and the entry still be wrong: here a window of layers that the entry does not know of."""
    model, lesson = Model(*tiny_model("gpt2")), random_lesson(queries=(3, 5))
    assure(model, lesson)
    model.family = replace(model.family, tested=False)
    assure(model, lesson)
    monkeypatch.setattr(attention_kernel, "merge", lambda first, second: second)  # as if the context were not seen
    with pytest.raises(InputError, match="cannot be measured"):
        assure(model, lesson)
