"""From demonstrations to an adapter and its card, on the embedded model."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from dualscope import Episode, Model, Task, make_lesson
from dualscope.baking import baked_adapter
from dualscope.baking.baked_adapter import BakedAdapter, adapter_applied, adapter_config, bake, check_new, write_adapter
from dualscope.baking.carried_changes import CarriedChange, carried
from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from tests.learners.setting import tiny_bench, tiny_task, wrapped


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("embedded", device="cpu")


@pytest.fixture(scope="module")
def baked(model: Model) -> BakedAdapter:
    task, other = Task.load("embedded-sst2"), Task.load("embedded-subj")
    return bake(model, task, "gd", shots=8, queries=40, lr=1.0, others=[other], ceiling=False)


def label_scores(model: Model, lesson: object, prefix: tuple[int, ...]) -> torch.Tensor:
    """One query at a time, each label's first token after the whole context: [queries, classes]."""
    rows = []
    for query in lesson.queries:  # type: ignore[attr-defined]
        with torch.no_grad():
            logits = model.hf(torch.tensor([[*prefix, *query]])).logits[0, -1]
        rows.append(logits.log_softmax(-1)[[answer[0] for answer in lesson.answers]])  # type: ignore[attr-defined]
    return torch.stack(rows)


def test_fidelity_is_what_a_plain_loop_finds(model: Model, baked: BakedAdapter) -> None:
    lesson = make_lesson(baked.episode, model.tokenizer, model.max_positions)
    zero = label_scores(model, lesson, lesson.bos).argmax(-1)
    icl = label_scores(model, lesson, lesson.context).argmax(-1)
    with baked.applied():
        own = label_scores(model, lesson, lesson.bos).argmax(-1)
    gold, found = torch.tensor(lesson.labels), baked.fidelity
    assert found.queries == 40
    for accuracy, said in (
        (zero, found.accuracy_zero_shot),
        (icl, found.accuracy_in_context),
        (own, found.accuracy_baked),
    ):
        assert said == pytest.approx(float((accuracy == gold).double().mean()))
    assert found.agreement == pytest.approx(float((own == icl).double().mean()))
    assert found.agreement_zero_shot == pytest.approx(float((zero == icl).double().mean()))
    assert found.tokens_saved == len(lesson.context) - len(lesson.bos)
    assert {query.id for query in baked.episode.queries}.isdisjoint(e.id for e in baked.episode.demonstrations)


def test_what_it_does_to_another_task_is_what_a_plain_loop_finds(model: Model, baked: BakedAdapter) -> None:
    (drift,) = baked.drifts
    episode = Episode.draw(Task.load("embedded-subj"), shots=1, seed=0, queries=40)
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    before = label_scores(model, lesson, lesson.bos).argmax(-1)
    with baked.applied():
        after = label_scores(model, lesson, lesson.bos).argmax(-1)
    assert drift.changed == pytest.approx(float((before != after).double().mean()))
    assert drift.accuracy_after == pytest.approx(float((after == torch.tensor(lesson.labels)).double().mean()))


def test_the_model_is_as_before(model: Model, baked: BakedAdapter) -> None:
    fresh = Model.load("embedded", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.hf.parameters(), fresh.hf.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.hf.modules())


def test_a_rank_that_is_too_low_is_said_and_measured(model: Model, baked: BakedAdapter, tmp_path: Path) -> None:
    task = Task.load("embedded-sst2")
    cut = bake(model, task, "gd", shots=8, queries=40, lr=1.0, rank=1, ceiling=False)
    assert cut.rank == 1 < baked.rank
    assert cut.lost > 0.2 > baked.lost
    text = cut.save(tmp_path / "cut")[2].read_text()
    assert f"leaves out {cut.lost:.1%} of its norm" in text


def test_the_card_says_what_was_measured_and_its_head_is_yaml(baked: BakedAdapter, tmp_path: Path) -> None:
    text = baked.save(tmp_path / "adapter", "a <b> model")[2].read_text()
    _, head, body = text.split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields["base_model"] == "a <b> model"
    assert fields["dualscope"]["fidelity"]["agreement"] == pytest.approx(baked.fidelity.agreement, rel=1e-3)
    assert f"{100 * baked.fidelity.accuracy_baked:.1f} %" in body
    assert "<b>" not in body
    assert "embedded-subj" in body
    assert f"saves {baked.fidelity.tokens_saved} tokens" in body


def test_what_does_not_fit_is_said() -> None:
    small = wrapped("gpt2", dtype=torch.float32, n_positions=32)
    task = tiny_task()
    found = bake(small, task, "gd", shots=8, queries=4, lr=0.1, ceiling=False)
    assert found.fidelity.shots < 8
    assert f"{found.fidelity.shots} of 8 demonstrations fit" in found.notes[0]
    with pytest.raises(InputError, match="no demonstration fits"):
        bake(wrapped("gpt2", n_positions=14), task, "gd", shots=2, queries=4, lr=0.1)


def test_a_norm_behind_the_mlp_takes_no_bias() -> None:
    with pytest.raises(InputError, match=r"LoRA cannot carry what the learner changed.*take kv-distilled"):
        bake(wrapped("gemma2"), tiny_task(), "static-patch", shots=2, queries=4, options={"fit": 6}, ceiling=False)


def test_examples_that_are_all_shown_leave_none_to_ask(model: Model) -> None:
    pairs = [("a fine film", "Positive"), ("a dull plot", "Negative"), ("a bore", "Negative")]
    task = Task.from_examples(pairs, labels=["Negative", "Positive"], template="Sentence: {text} Label:")
    with pytest.raises(InputError, match=r"3 shots leave none of its 3 examples to ask.*--queries-from"):
        bake(model, task, "gd", shots=3, lr=1.0)
    assert bake(model, task, "gd", shots=2, lr=1.0, ceiling=False).fidelity.queries == 1


@pytest.mark.slow
def test_the_best_change_of_keys_and_values_is_a_ceiling(model: Model) -> None:
    task = Task.load("embedded-sst2")
    found = bake(model, task, "gd", shots=8, queries=40, lr=0.1)
    assert found.fidelity.explained_by_ceiling is not None
    assert found.fidelity.explained_by_ceiling > 0.8
    share = found.fidelity.explained / found.fidelity.explained_by_ceiling
    assert found.fidelity.share_of_ceiling == pytest.approx(share)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["kv-distilled", "gd-tuned", "static-patch"])
def test_plain_peft_computes_what_was_learned(learner: str, tmp_path: Path) -> None:
    """Adapter and model read from their files by peft and transformers alone, in a process of their own."""
    import subprocess

    pytest.importorskip("peft")
    from dualscope.models.loading.source import find

    settings: dict[str, dict[str, Any]] = {
        "kv-distilled": {"lr": 3e-3, "steps": 40},
        "gd-tuned": {"lr": 1e-3, "epochs": 1, "loss": "all", "optimiser": "adam"},
    }
    wide = Model.load("embedded", device="cpu", dtype="float64")
    found = bake(
        wide, Task.load("embedded-sst2"), learner, shots=8, queries=20, options=settings.get(learner), ceiling=False
    )
    found.save(tmp_path / "adapter", "embedded")
    bench = Bench(wide, make_lesson(found.episode, wide.tokenizer, wide.max_positions))
    row = [*bench.lesson.bos, *bench.lesson.queries[0]]
    with torch.no_grad(), found.applied():
        torch.save(wide.hf(torch.tensor([row])).logits, tmp_path / "ours.pt")
    plain = (
        "import sys, torch\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n"
        "base = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64)\n"
        "model = PeftModel.from_pretrained(base, sys.argv[2]).eval()\n"
        "assert 'dualscope' not in sys.modules\n"
        f"with torch.no_grad(): found = model(torch.tensor([{row}])).logits\n"
        "print(float((found - torch.load(sys.argv[3])).abs().max()))\n"
    )
    base = find("embedded", offline=True).folder
    paths = [str(base), str(tmp_path / "adapter"), str(tmp_path / "ours.pt")]
    done = subprocess.run([sys.executable, "-I", "-c", plain, *paths], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5
    assert found.logits_apart < 1e-5


FAMILIES = ("gpt2", "gpt_neox", "llama", "phi3", "opt", "codegen", "falcon")
LEARNERS: tuple[tuple[str, float | None, dict[str, Any]], ...] = (
    ("gd", 0.5, {}),
    ("static-patch", None, {"fit": 6, "every_token": True}),
)
TOKENS = torch.tensor([[1, 5, 9, 7, 3, 12]])


def logits(model: Model) -> Tensor:
    """Of every token, with whatever acts inside the reading."""
    with torch.no_grad(), model.running(), capturing(model, Session(acts=slice(None), query_ids=("",))):
        return model.forward(TOKENS)


@pytest.mark.parametrize(
    ("family", "learner", "lr", "options"),
    [
        *((family, *learner) for family in FAMILIES for learner in LEARNERS),
        ("deepseek_v3", *LEARNERS[0]),  # a mixture of experts, whose MLPs peft would take for experts
    ],
)
def test_peft_computes_what_the_learner_changed(
    family: str, learner: str, lr: float | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """Heads that share keys, fused and transposed matrices, biases; in float64, so that what differs is no rounding."""
    peft = pytest.importorskip("peft")
    bench = tiny_bench(family)
    model = bench.model
    change = bench.learned(learner, lr, **options).change
    assert change is not None
    layers = carried(model, change)
    with change.applied(model):
        wanted = logits(model)
    with adapter_applied(model, layers):
        beside = logits(model)
    plain = logits(model)
    write_adapter(tmp_path / "adapter", model, layers, "tiny", "# a card\n")
    loaded = peft.PeftModel.from_pretrained(model.hf, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        found = loaded(TOKENS).logits
    assert float((wanted - plain).abs().max()) > 1e-2
    torch.testing.assert_close(beside, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def some_layers() -> tuple[Bench, dict[str, CarriedChange]]:
    bench = tiny_bench("llama")
    return bench, carried(bench.model, bench.learned("gd", 0.5).change)


def test_layers_of_other_ranks_are_scaled_alike(tmp_path: Path) -> None:
    """peft scales by alpha / r: where a layer's rank is another, so is its alpha."""
    peft = pytest.importorskip("peft")
    bench, layers = some_layers()
    first = next(iter(layers))
    layers[first] = layers[first].cut_to(2)
    written = adapter_config(bench.model, layers, "tiny")
    assert written["rank_pattern"] == written["alpha_pattern"]
    assert written["rank_pattern"][first] == 2
    write_adapter(tmp_path / "adapter", bench.model, layers, "tiny", "")
    with adapter_applied(bench.model, layers):
        wanted = logits(bench.model)
    loaded = peft.PeftModel.from_pretrained(bench.model.hf, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS).logits, wanted, rtol=0, atol=1e-5)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in (".", "link"):
        with pytest.raises(InputError, match="exists; give a folder that does not exist yet"):
            check_new(tmp_path / name)
    check_new(tmp_path / "new")


def test_whoever_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, layers = some_layers()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(baked_adapter, "save_file", full)
        with pytest.raises(OSError, match="No space"):
            write_adapter(tmp_path / "made" / "adapter", bench.model, layers, "tiny", "")
    assert list((tmp_path / "made").iterdir()) == []
    written = write_adapter(tmp_path / "made" / "adapter", bench.model, layers, "tiny", "# card\n")
    assert [path.name for path in written] == ["adapter_config.json", "adapter_model.safetensors", "README.md"]
    assert sorted(os.listdir(tmp_path / "made")) == ["adapter"]
    assert json.loads(written[0].read_text())["peft_type"] == "LORA"
