"""A model whose layers live on several devices gives the numbers of the unsplit one, whatever learns.

Everywhere over a pretended second device; where there is a CUDA device, over that and the CPU too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2RotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Control
from dualscope.learners import Bench
from dualscope.learners.controls import COMBINATORS
from dualscope.learners.learner import Learned
from dualscope.models import Model
from dualscope.models.load import load
from dualscope.models.placement import split
from dualscope.models.reading import memory
from tests.learners import oracle
from tests.learners.setting import ANY_TASK, tiny_lesson, tiny_task, wrapped
from tests.models.pretended import SECOND, move, second_device

BASIC = ("zero-shot", "in-context", "gd", "lcgd")
FAMILIES = ["gpt2", "llama", "gpt_neox", "xglm", "gemma2", "bloom"]
LR = 0.3
WANT = frozenset({"exits", "mass", "kendall", "dual", "direct"})
# Nothing is left open that would be chosen on more examples than there are, and what is fitted is fitted briefly.
FITTED = {"lr": 1e-2, "fit": 6, "steps": 10, "batch": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "kv-distilled": FITTED,
    "kv-aligned": FITTED,
    "static-patch": {"fit": 6},
    "gd-tuned": {"lr": 0.1, "epochs": 1, "loss": "all", "parameters": "all", "optimiser": "sgd"},
    "lcgd-clipped": {"threshold": 0.01},
    "function-vector": {"layer": 1, "which": ((0, 1), (1, 0)), "prompts": 4},
    "kernel": {"layer": 1, "temperature": 0.1},
    "task-vector": {"layer": 1, "dummies": 2},
    "gd-layers": {"layers": (0, 2), "lr": LR},
    "functional-gd": {"lr": LR},
    "shallow-written": {"rate": 1.0},
}
# Forward-mode derivatives do not pass through tensors that are held by others.
NO_FORWARD_MODE = ("gd-linearized",)


def lessons(model: Model) -> dict[str, Any]:
    second = tiny_task("second", ("Yes", "No"), seed=9, template="Question: {text} Answer:")
    return {"lesson": tiny_lesson(model), "other": tiny_lesson(model, task=second)}


# Adam takes a whole step along a gradient that is rounding alone, such as that of a key bias.
BY_ADAM = ("kv-distilled", "kv-aligned")


def assert_same(found: Learned, wanted: Learned, changes: bool = True) -> None:
    for name in ("attn_out", "attn_scores", "label_logprobs", "residual"):
        pair = (getattr(found.trace, name).cpu(), getattr(wanted.trace, name))
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert set(found.trace.extras) == set(wanted.trace.extras)
    for name, value in wanted.trace.extras.items():
        torch.testing.assert_close(found.trace.extras[name].cpu(), value, rtol=1e-5, atol=1e-5, equal_nan=True)
    if changes and wanted.delta is not None:
        assert found.delta is not None
        assert oracle.worst(found.delta.to("cpu"), dict(wanted.delta)) <= 1e-5


def test_blocks_are_shared_out_in_order() -> None:
    hf = wrapped("llama").hf
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    places = split(hf, [first, second])
    assert [places[f"model.layers.{i}"] for i in range(3)] == [first, first, second]
    assert places["model.embed_tokens"] == first
    assert places["model.norm"] == second
    tied = hf.get_input_embeddings().weight is hf.get_output_embeddings().weight
    assert places["lm_head"] == (first if tied else second)


@pytest.fixture
def fitted_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU alone fits are in float32, over several devices never."""
    monkeypatch.setattr("dualscope.learners.ceilings.distilled.no_wider_than_needed", lambda model: model)


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch, fitted_in_float64: None) -> Iterator[None]:
    for where in ("dualscope.models.reading.memory", "dualscope.learners.bench"):
        monkeypatch.setattr(f"{where}.total_memory", lambda _device: 2**34)
    with second_device():
        yield


def split_in_pretence(family: str, dtype: torch.dtype = torch.float64) -> tuple[Bench, Bench]:
    """The bench of a whole model, and of the same one split over the pretended device and the CPU."""
    whole, parted = wrapped(family, dtype), wrapped(family, dtype)
    move(parted.hf, split(parted.hf, [SECOND, torch.device("cpu")]))
    model = Model(parted.hf, parted.tokenizer)
    return Bench(whole, want=WANT, **lessons(whole)), Bench(model, want=WANT, **lessons(whole))


@pytest.mark.usefixtures("pretending")
def test_each_device_holds_its_own_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that no device could hold alone is read in batches all the same."""
    _, bench = split_in_pretence("llama")
    model = bench.model
    shares = [memory.weight_bytes(model.hf, device=one) for one in model.devices]
    assert len(shares) == 2
    a_query = memory.estimate(model.hf, model.dtype, 1, 0).query
    room = int(2 * a_query / memory.SHARE)
    monkeypatch.setattr(memory, "total_memory", lambda _device: max(shares) + room)
    assert max(shares) + room < sum(shares)
    assert memory.batch_size(model, 1, 0) == 2
    monkeypatch.setattr(memory, "total_memory", lambda _device: 2**30)
    assert memory.tensor_limit(model) == (2**30 - shares[0]) // 64  # traces live on the first


OTHER_CONTROLS = sorted(set(COMBINATORS) - {"redraw", "random-update"})
ALIKE = ("kv-aligned", "static-patch", "gd-matched", "lcgd-clipped", "gd-tuned", "zero-shot-offset")
"""Each does with its tensors what another does."""
PRETENDED = [
    pytest.param(
        family,
        learner,
        marks=[] if learner == "gd" or (family == "llama" and learner not in ALIKE) else pytest.mark.slow,
    )
    for family in FAMILIES
    for learner in ANY_TASK
    if learner not in NO_FORWARD_MODE and (family in ("gpt2", "llama") or learner in BASIC)
]


@pytest.mark.usefixtures("pretending")
@pytest.mark.parametrize(("family", "learner"), PRETENDED)
def test_split_over_a_pretended_device(family: str, learner: str) -> None:
    whole, parted = split_in_pretence(family)
    settings = SETTINGS.get(learner, {})
    found = parted.learned(learner, **{"lr": LR, **settings})
    assert_same(found, whole.learned(learner, **{"lr": LR, **settings}), learner not in BY_ADAM)
    assert found.trace.attn_out.device == SECOND
    if found.delta is not None:  # each layer's change stays where the layer is
        assert {change.device.type for change in found.delta.values()} == {"meta", "cpu"}


@pytest.mark.usefixtures("pretending")
@pytest.mark.parametrize(
    "control", ["redraw", "random-update", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHER_CONTROLS)]
)
def test_controls_split_over_a_pretended_device(control: Control) -> None:
    whole, parted = split_in_pretence("llama")
    learning = LearnerSpec("gd", control, lr=LR)
    assert_same(parted.result(learning).learned, whole.result(learning).learned)


@pytest.mark.usefixtures("pretending")
@pytest.mark.parametrize("learner", ["gd", "lcgd"])
def test_beside_weights_of_16_bits(learner: str) -> None:
    _, parted = split_in_pretence("llama", torch.bfloat16)
    found = parted.learned(learner, LR)
    assert found.delta is not None
    assert {change.device.type for change in found.delta.values()} == {"meta", "cpu"}
    assert found.trace.label_logprobs.cpu().isfinite().all()


def _turned(rotary: Any, x: Tensor, position_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    angles = position_ids[..., None].double() * rotary.inv_freq.double()
    both = torch.cat((angles, angles), -1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def _normed(norm: Any, x: Tensor) -> Tensor:
    found: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight
    return found


def _normed_from_one(norm: Any, x: Tensor) -> Tensor:
    found: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * (1 + norm.weight)
    return found


@pytest.fixture
def all_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and rotations, which transformers computes in float32 always: a GPU rounds it otherwise than a CPU."""
    monkeypatch.setattr(LlamaRMSNorm, "forward", _normed)
    monkeypatch.setattr(Gemma2RMSNorm, "forward", _normed_from_one)
    for rotary in (LlamaRotaryEmbedding, GPTNeoXRotaryEmbedding, Gemma2RotaryEmbedding):
        monkeypatch.setattr(rotary, "forward", _turned)


@pytest.mark.usefixtures("all_in_float64", "fitted_in_float64")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("learner", ANY_TASK)
def test_split_over_cuda_and_cpu(family: str, learner: str, tmp_path: Path) -> None:
    whole, settings = wrapped(family), SETTINGS.get(learner, {})
    whole.hf.save_pretrained(tmp_path)
    whole.tokenizer.save_pretrained(tmp_path)
    parted = load(str(tmp_path), device="cuda:0,cpu", dtype="float64")
    assert {place.type for place in parted.devices} == {"cuda", "cpu"}
    wanted = Bench(whole, want=WANT, **lessons(whole)).learned(learner, **{"lr": LR, **settings})
    found = Bench(parted, want=WANT, **lessons(whole)).learned(learner, **{"lr": LR, **settings})
    assert_same(found, wanted, learner not in BY_ADAM)
