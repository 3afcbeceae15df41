"""The dual of real heads, on every architecture, against a plain pass that shares no code with ours."""

from pathlib import Path

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.attention_kinds.install import apply
from dualscope.tasks import Episode, Task
from dualscope.theory import dual_of
from tests.models.lessons import random_lesson
from tests.models.oracle import watch
from tests.models.tiny import FAMILIES, tiny_model
from tests.models.unlisted import sink_model


def tiny(family: str, dtype: torch.dtype = torch.float64) -> Model:
    return Model(*tiny_model(family, dtype), name=family)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_is_its_split_and_its_dual(family: str) -> None:
    model, lesson = tiny(family), random_lesson(queries=(3, 12))
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            found = dual_of(model, lesson, layer, head, query=1)
            for sides in (found.split, found.kernel, found.linear):
                assert sides.error <= 1e-10
            assert found.dual.error <= 1e-9


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "bloom", "mistral"])
def test_the_splits_of_all_heads_are_the_layers_output(family: str) -> None:
    """Put together and through the output projection, they are what the oracle saw the layer add."""
    model, lesson = tiny(family), random_lesson(queries=(3, 12))
    tokens = [*lesson.context, *lesson.own_tokens(1)]
    _, layers = watch(model.hf, tokens)
    for layer in range(model.n_layers):
        heads = [dual_of(model, lesson, layer, head, query=1) for head in range(model.n_heads)]
        joined = torch.cat([found.split.right for found in heads])
        projection = model.attentions[layer].get_submodule(model.family.output)
        with torch.no_grad():
            out = projection(joined)
        torch.testing.assert_close(out, layers[layer].attn_out[-1], rtol=1e-9, atol=1e-9)
        masses = layers[layer].weights[:, -1, len(lesson.bos) : len(lesson.context)].sum(-1)
        torch.testing.assert_close(torch.tensor([found.mass for found in heads]).double(), masses)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_plain_heads_need_no_bias(family: str) -> None:
    """Scaled products alone explain the scores, so the bias absorbs nothing."""
    model = tiny(family)
    found = dual_of(model, random_lesson(), layer=1, head=3)
    assert found.scaling == pytest.approx(model.head_dim**-0.5, rel=1e-12)
    assert found.head.bias is not None
    assert float(found.head.bias.abs().max()) < 1e-12


def test_dw_icl_is_the_demonstrations_outer_products() -> None:
    model, lesson = tiny("llama"), random_lesson()
    found = dual_of(model, lesson, layer=0, head=1)
    assert found.head.demonstrations == len(lesson.context) - len(lesson.bos)
    outer = sum(torch.outer(found.head.values[i], found.head.keys[i]) for i in range(found.head.demonstrations))
    torch.testing.assert_close(found.dw_icl, outer)
    assert 0 < found.mass < 1


def test_without_demonstrations_in_sight_nothing_is_updated() -> None:
    """Mistral's window of 8 is shorter than the query: the demonstrations are out of sight."""
    found = dual_of(tiny("mistral"), random_lesson(queries=(3, 12)), layer=0, head=0, query=1)
    assert found.head.demonstrations == 0
    assert found.mass == 0
    assert not found.dw_icl.any()


def test_float32_model_is_split_to_its_own_precision() -> None:
    found = dual_of(tiny("gpt2", torch.float32), random_lesson(), layer=2, head=0)
    assert found.split.error < 1e-5
    assert found.dual.error < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_episode_will_do(family: str, tiny_task: Task) -> None:
    episode = Episode.draw(tiny_task, shots=5, queries=3)
    found = dual_of(tiny(family), episode, layer=2, head=2, query=1)
    assert found.split.error <= 1e-10
    assert found.dual.error <= 1e-9


@pytest.mark.shared
def test_a_trained_model_on_real_text(shared: Path) -> None:
    """Large keys and sharp heads: the dual must survive what random weights do not show."""
    model = Model.load(str(shared / "models" / "realtext-21m"), device="cpu", dtype="float64", offline=True)
    episode = Episode.draw(Task.load("sst2", data=shared / "data"), shots=8, queries=2)
    for layer, head in ((0, 5), (5, 0), (9, 3)):
        found = dual_of(model, episode, layer, head)
        assert found.split.error <= 1e-10
        assert found.kernel.error <= 1e-10
        assert found.dual.error <= 1e-9


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("gpt2")
    before = model.hf.config._attn_implementation
    dual_of(model, random_lesson(), layer=0, head=0)
    assert model.hf.config._attn_implementation == before
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.hf.modules())


@pytest.mark.parametrize("where", [{"layer": 3}, {"head": 4}, {"query": 99}, {"layer": -1}])
def test_numbers_out_of_range_are_explained(where: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(where))} .*0 to"):
        dual_of(tiny("gpt2"), random_lesson(), **({"layer": 0, "head": 0} | where))


def test_a_changed_attention_is_refused_and_changed_projections_are_not() -> None:
    hf, tokenizer = tiny_model("gpt2", torch.float64)
    apply(hf, {"name": "regularized", "alpha": 0.5})
    with pytest.raises(InputError, match=r"'regularized' attention .* dualscope\.theory\.attention_variants"):
        dual_of(Model(hf, tokenizer), random_lesson(), layer=0, head=0)
    hf, tokenizer = tiny_model("gpt2", torch.float64)
    apply(hf, {"name": "augmented"})
    assert dual_of(Model(hf, tokenizer), random_lesson(), layer=0, head=0).dual.error <= 1e-9


def test_a_sink_is_one_more_token() -> None:
    model, lesson = Model(*sink_model()), random_lesson()
    for layer in range(model.n_layers):
        found = dual_of(model, lesson, layer, head=1)
        assert found.head.bias is not None
        assert float(found.head.bias[-1]) == pytest.approx(model.attentions[layer].get_parameter("sinks")[1].item())
        for sides in (found.split, found.kernel, found.linear, found.dual):
            assert sides.error < 1e-5  # a float32 model
