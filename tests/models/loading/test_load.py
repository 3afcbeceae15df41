"""Model.load: what it gives, and how it says what is wrong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM, T5Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2RotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Control
from dualscope.learners import Bench
from dualscope.learners.controls import COMBINATORS
from dualscope.learners.learner import Learned
from dualscope.models import Model
from dualscope.models.loading import load as loading
from dualscope.models.loading import source
from dualscope.models.loading.digest import digest_of_files
from dualscope.models.loading.load import load, split
from dualscope.models.reading import memory
from tests.learners import oracle
from tests.learners.setting import ANY_TASK, tiny_lesson, tiny_task, wrapped
from tests.models.lessons import random_lesson
from tests.models.loading.test_conversion import pickled
from tests.models.pretended import SECOND, move, second_device
from tests.models.tiny import random_model, tiny_model
from tests.models.unlisted import REFUSED, unlisted_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf, tokenizer = tiny_model("gpt2")
    hf.half().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_dtype_is_what_was_asked_for_not_what_the_file_has(folder: Path) -> None:
    stored, _ = tiny_model("gpt2")
    stored.half()
    for name, dtype in {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}.items():
        model = Model.load(str(folder), device="cpu", dtype=name)
        assert (model.dtype, model.precision, model.device.type) == (dtype, name, "cpu")
        assert torch.equal(model.hf.lm_head.weight, stored.lm_head.weight.to(dtype))
    assert not model.hf.training
    assert model.tied_embeddings
    assert model.tokenizer.bos_token_id == 1


def test_shards_load_and_digests_tell_contents_apart(folder: Path, tmp_path: Path) -> None:
    hf, tokenizer = tiny_model("gpt2")
    hf.half().save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    tokenizer.save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    model = Model.load(str(tmp_path / "shards"), device="cpu")
    whole = Model.load(str(folder), device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.hf.parameters(), whole.hf.parameters(), strict=True))
    other, _ = tiny_model("gpt2", seed=1)
    other.half().save_pretrained(tmp_path / "other")
    digests = {digest_of_files((tmp_path / name).glob("*.safetensors")) for name in ("model", "shards", "other")}
    assert len(digests) == 3
    assert whole.digest in digests
    assert Model.load(str(folder), device="cpu", variant="untrained", init_seed=5).digest == whole.digest


def test_digest_of_a_cached_file_is_its_name(tmp_path: Path) -> None:
    """The hub's cache names large files by their sha256; the content is not read again."""
    import hashlib

    content = b"weights"
    blob = tmp_path / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(content)
    plain, link = tmp_path / "model.safetensors", tmp_path / "snapshot" / "model.safetensors"
    plain.write_bytes(content)
    link.parent.mkdir()
    link.symlink_to(blob)
    assert digest_of_files([plain]) == digest_of_files([link])


def test_variants_load_seeded(folder: Path) -> None:
    one = Model.load(str(folder), device="cpu", variant="untrained", init_seed=1)
    again = Model.load(str(folder), device="cpu", variant="untrained", init_seed=1)
    two = Model.load(str(folder), device="cpu", variant="untrained", init_seed=2)
    weights = [model.hf.transformer.h[0].attn.c_attn.weight for model in (one, again, two)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert (one.variant, one.init_seed) == ("untrained", 1)


def refuse(name: str | Path, match: str, **options: object) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Model.load(str(name), device="cpu", **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_places_that_are_not_models(tmp_path: Path, folder: Path) -> None:
    refuse(tmp_path / "nowhere", "no such folder")
    refuse("./nowhere", "no such folder")
    refuse(folder / "config.json", "is a file")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "no config.json")
    refuse("some body/some model", "neither a folder nor a name on the hub", offline=True)
    refuse("nobody/no-such-model", "not in the local cache", offline=True)
    refuse("nobody/no-such-model@v2", "not in the local cache", offline=True)


def test_pickled_weights_name_the_command(tmp_path: Path) -> None:
    pickled(tmp_path / "old")
    refuse(tmp_path / "old", f"dualscope convert {tmp_path}/old OUT")


def test_no_weights_and_missing_shards(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    refuse(folder, "no model.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(folder, "are missing")


def test_weights_that_are_not_in_the_file_are_never_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    table = load_file(folder / "model.safetensors")
    table.pop("transformer.h.1.attn.c_attn.weight")
    save_file(table, folder / "model.safetensors", {"format": "pt"})
    refuse(folder, "1 weights are not in its files .transformer.h.1.attn.c_attn.weight")
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    refuse(folder, "is damaged")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n_embd": 64}, r"c_attn.bias' is \[96\] in its files, and its config.json makes it \[192\]"),
        ({"model_type": None}, "its config.json: cannot be read \\("),
        (
            {"model_type": None, "auto_map": {"AutoConfig": "x.y"}},
            "config.json without code from the model's author, which is never run here",
        ),
    ],
)
def test_a_config_that_does_not_fit(folder: Path, changed: dict[str, Any], said: str) -> None:
    file = folder / "config.json"
    fields = json.loads(file.read_text()) | changed
    file.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    with pytest.raises(InputError, match=said):
        Model.load(str(folder), device="cpu")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"weight_map": 3}'])
def test_a_damaged_index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=r"index\.json.*; copy the folder again"):
        Model.load(str(folder), device="cpu")


def test_a_tokenizer_of_another_model() -> None:
    hf, tokenizer = tiny_model("gpt2")
    hf.resize_token_embeddings(12)
    with pytest.raises(InputError, match=r"made the token \d+, and the model has embeddings for 12"):
        Bench(Model(hf, tokenizer), random_lesson())


def test_experts_in_float64(tmp_path: Path) -> None:
    hf, tokenizer = unlisted_model("mixtral", num_local_experts=2, num_experts_per_tok=1)
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    traces = [
        Bench(Model.load(str(tmp_path), device="cpu", dtype=dtype), random_lesson()).in_context
        for dtype in ("float64", "float32")
    ]
    assert traces[0].label_logprobs.dtype == torch.float64
    assert (traces[0].label_logprobs - traces[1].label_logprobs).abs().max() < 1e-4


def test_encoders_and_other_kinds(tmp_path: Path) -> None:
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=96)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    refuse(tmp_path / "bert", "bert.*not a causal language model")
    T5Config().save_pretrained(tmp_path / "t5")
    refuse(tmp_path / "t5", "t5.*not a causal language model")
    (tmp_path / "own").mkdir()
    auto = {"model_type": "my_own", "auto_map": {"AutoConfig": "code.MyConfig"}}
    (tmp_path / "own" / "config.json").write_text(json.dumps(auto))
    refuse(tmp_path / "own", "never run")


def test_missing_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()
    refuse(folder, "no tokenizer")


def test_names_of_options(folder: Path) -> None:
    refuse(folder, "unknown dtype 'fp16'.*float16", dtype="fp16")
    refuse(folder, "needs a CUDA device", dtype="tf32")
    refuse(folder, "did you mean untrained", variant="untraind")
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        Model.load(str(folder), device="gpu")
    with pytest.raises(InputError, match="CUDA devices"):
        Model.load(str(folder), device="cuda:99")


def test_too_large_for_the_device_says_how_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "total_memory", lambda device: 2**17)
    refuse(folder, r"needs 0.2 MiB for its float32 weights, and 'cpu' has 0.1 MiB")
    assert Model.load(str(folder), device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_estimate_needs_no_weights(folder: Path) -> None:
    from dualscope.models.reading.memory import weight_bytes

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    model = Model.load(str(folder), device="cpu")
    assert weight_bytes(skeleton, torch.float32) == weight_bytes(model.hf)


def test_revisions_and_the_embedded_model() -> None:
    found = source.find("owner/name@refs/pr/1")
    assert (found.repository, found.revision, found.location) == ("owner/name", "refs/pr/1", "owner/name")
    embedded = source.find("embedded").folder
    assert embedded is not None
    assert embedded.name == "embedded"


def test_a_hub_cache_is_enough_offline(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache as huggingface_hub keeps it, with one snapshot: loaded by name, without a connection."""
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    model = Model.load("owner/tiny", device="cpu", offline=True)
    assert model.revision == commit
    assert model.digest == Model.load(str(folder), device="cpu").digest
    pinned = Model.load(f"owner/tiny@{commit}", device="cpu", offline=True)
    assert pinned.revision == commit
    refuse("owner/tiny@other", "not in the local cache", offline=True)


def test_the_embedded_model_needs_nothing() -> None:
    model = Model.load("embedded", device="cpu", offline=True)
    assert model.name == "embedded"
    assert len(model.digest) == 64


def test_several_devices_only_where_one_is_too_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    place = torch.device("cuda")
    monkeypatch.setattr(loading, "total_memory", lambda device: 2**17)

    def placement(count: int, automatic: bool = True, dtype: torch.dtype = torch.float32) -> dict[str, object]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        return loading.placement(str(folder), empty, dtype, [place], automatic)

    assert placement(4, dtype=torch.bfloat16) == {"device_map": {"": place}}
    several = placement(4)
    assert several["device_map"] == "auto"
    assert list(several["max_memory"]) == [0, 1, 2, 3]  # type: ignore[call-overload]
    for count, automatic in ((1, True), (4, False)):
        with pytest.raises(InputError, match=r"has 0.1 MiB in all"):
            placement(count, automatic)


def test_what_cannot_be_measured_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    kind, config, _ = REFUSED["mamba"]
    hf = random_model(kind, config)
    hf.config.save_pretrained(tmp_path)  # and no weights at all
    with pytest.raises(InputError, match=r"model '.*': the architecture 'mamba' carries its context in a recurrent"):
        Model.load(str(tmp_path), device="cpu")


BASIC = ("zero-shot", "in-context", "gd", "lcgd")
FAMILIES = ["gpt2", "llama", "gpt_neox", "xglm", "gemma2", "bloom"]
LR = 0.3
WANT = frozenset({"exits", "mass", "kendall", "dual", "direct"})
# Nothing is left open that would be chosen on more examples than there are, and what is fitted is fitted briefly.
FITTED = {"lr": 1e-2, "fit": 6, "steps": 3, "batch": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "kv-distilled": FITTED,
    "kv-aligned": FITTED,
    "static-patch": {"fit": 6},
    "gd-tuned": {"lr": 0.1, "epochs": 1, "loss": "all", "parameters": "all", "optimiser": "sgd"},
    "gd-nearest": {"lr": 0.1, "epochs": 1},
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
