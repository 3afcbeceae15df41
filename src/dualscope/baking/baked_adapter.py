"""A context baked into weights: from demonstrations to a LoRA adapter, and how faithful it is.

The adapter is a folder in peft's own format, which appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dualscope.baking.carried_changes import CarriedChange, carried
from dualscope.baking.fidelity_card import Drift, Fidelity, accuracy, agreement, card_of, drift_of, explained_share
from dualscope.core.errors import InputError
from dualscope.core.folder import flush, share
from dualscope.learners import LEARNERS, Bench, Learned
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.loading.adapter import CONFIG, WEIGHTS, LowRank
from dualscope.tasks import Episode, Task, make_lesson

if TYPE_CHECKING:
    from dualscope.baking.carried_changes import CarriedChange
    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace


BAKED = ("kv-distilled", "gd-tuned", "static-patch")
FIT, LEAST_FIT = 64, 6
CLOSE = 1e-3  # of the logits' spread: further apart, the adapter is not the learner's change
COMPARED = 8  # queries whose logits are compared


@dataclass(frozen=True)
class BakedAdapter:
    """An adapter by layer, and what was measured of it.

    >>> from dualscope import Model, Task
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> baked = bake(model, task, "gd", shots=4, queries=20, lr=1.0, ceiling=False)
    >>> sorted(baked.layers)[0], baked.fidelity.queries, baked.fidelity.tokens_saved > 4
    ('transformer.h.0.attn.c_attn', 20, True)
    """

    model: Model
    learner: str
    settings: Mapping[str, Any]  # the learner's options, with what was chosen
    episode: Episode
    layers: Mapping[str, CarriedChange]
    fidelity: Fidelity
    drifts: tuple[Drift, ...]
    logits_apart: float
    """The largest difference between the logits of the adapter and of the learner's change, of full rank."""
    notes: tuple[str, ...] = field(default=())

    @property
    def lost(self) -> float:
        """|change - adapter| / |change| over all layers."""
        parts = [change.factors for change in self.layers.values()]
        whole = sum(part.whole_square for part in parts)
        return float((sum(part.lost_square for part in parts) / whole) ** 0.5) if whole else 0.0

    @property
    def rank(self) -> int:
        """Of the layer that has the highest."""
        return max(change.factors.rank for change in self.layers.values())

    def applied(self) -> Any:
        """The model with the adapter, inside ``with``."""
        return adapter_applied(self.model, self.layers)

    def save(self, out: Path | str, base: str | None = None) -> tuple[Path, Path, Path]:
        """Write configuration, weights and card into a new folder; ``base`` is what the card calls the model."""
        name = self.model.name if base is None else base
        return write_adapter(Path(out), self.model, self.layers, name, card_of(self, name))


@dataclass(frozen=True)
class _LowRankAndBias:
    """What peft adds to the output of one linear layer: s B A x and, where the adapter has biases, one more."""

    product: LowRank
    bias: Tensor | None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        added = self.product(module, args, output)
        return added if self.bias is None else (added + self.bias.to(added.device)).to(output.dtype)


@contextmanager
def adapter_applied(model: Model, layers: Mapping[str, CarriedChange]) -> Iterator[None]:
    """The model with an adapter beside its weights, on every token, as peft has it."""
    with ExitStack() as stack:
        for name, change in layers.items():
            module = model.hf.get_submodule(name)
            device = module.get_parameter("weight").device
            wide = torch.promote_types(model.dtype, torch.float32)
            down, up = (t.to(device, wide) for t in (change.factors.down, change.factors.up))
            bias = None if change.bias is None else change.bias.to(device, wide)
            hook = _LowRankAndBias(LowRank(down, up, 1.0), bias)
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def bake(
    model: Model,
    task: Task,
    learner: str = "kv-distilled",
    *,
    shots: int = 16,
    seed: int = 0,
    queries: int = 200,
    lr: float | None = None,
    rank: int | None = None,
    options: Mapping[str, Any] | None = None,
    others: Sequence[Task] = (),
    ceiling: bool = True,
) -> BakedAdapter:
    """Learn from a task's demonstrations, write the change as an adapter, and measure it on held-out queries.

    ``rank`` cuts the adapter's rank, which is that of the change where none is given. ``others`` are tasks that should
    not change. ``ceiling``: whether ``kv-distilled`` is fitted beside another learner, to compare with.

    Raises:
        InputError: No such learner or option, a change that LoRA cannot carry, or too little room or too few examples.
    """
    kind = LEARNERS[learner]
    _check_attention(model)
    episode = Episode.draw(task, shots=shots, seed=seed, queries=_room_for_spare(task, shots, queries))
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    bench = Bench(model, lesson)
    notes = []
    if lesson.shots_used < shots:
        notes.append(
            f"{lesson.shots_used} of {shots} demonstrations fit into the model's {model.max_positions} positions"
        )
    given = dict(options or {})
    lr = given.pop("lr", lr)  # of some learners it is an option
    fit = _examples_to_fit(bench)
    if "fit" in kind.options.model_fields and "fit" not in given:
        given["fit"] = fit
    if not bench.spare and "fit" in kind.options.model_fields:
        notes.append("no example was spare, so the adapter was fitted on the demonstrations themselves")
    if learner == "static-patch":
        given["every_token"] = True  # as weights act
    if learner == "gd-tuned":
        given.setdefault("parameters", "kv")  # embeddings and norms are no linear layers
    if kind.needs_lr and lr is None:
        plain = LEARNERS[learner]()
        lr = plain.choose([bench], plain.options(**given)).settings["lr"]
    learned = bench.learned(learner, lr, **given)
    layers = carried(model, learned.change)
    apart = _compared(bench, learned, layers)
    if rank is not None:
        layers = {name: change.cut_to(rank) for name, change in layers.items()}
    with adapter_applied(model, layers):
        trace = model.read(bench.lesson)
    top = None
    if learner == "kv-distilled":
        top = explained_share(bench.in_context, bench.zero_shot, learned.trace)
    elif ceiling and fit >= LEAST_FIT:
        found = bench.learned("kv-distilled", fit=fit)
        top = explained_share(bench.in_context, bench.zero_shot, found.trace)
    drifts = tuple(_drift(model, other, min(queries, 100), layers) for other in others)
    settings = given | ({} if learned.choice is None else learned.choice.settings) | ({} if lr is None else {"lr": lr})
    return BakedAdapter(
        model, learner, settings, episode, layers, _fidelity(bench, trace, top), drifts, apart, tuple(notes)
    )


def _room_for_spare(task: Task, shots: int, queries: int) -> int:
    """How many queries are asked where they come from the same examples as demonstrations: half of the rest."""
    if task.config.splits.train != task.config.splits.evaluation or task.queries is not None:
        return queries
    left = len(task.train) - shots
    if left < 1:
        raise InputError(
            f"task '{task.name}': {shots} shots leave none of its {len(task.train)} examples to ask; give fewer "
            "--shots, or held-out examples with --queries-from FILE"
        )
    return min(queries, max(1, left // 2))


def _examples_to_fit(bench: Bench) -> int:
    return max(LEAST_FIT, min(FIT, len(bench.spare))) if bench.spare else FIT


def _check_attention(model: Model) -> None:
    if getattr(model.config, "dualscope_attention", None) is not None:
        raise InputError(
            f"model '{model.name}' has an attention of dualscope's own, which transformers does not know: an adapter "
            "for it could not be loaded anywhere else"
        )


@torch.no_grad()
def _compared(bench: Bench, learned: Learned, layers: Mapping[str, CarriedChange]) -> float:
    """How far the adapter's logits are from those of the learner's change; an error where it is not that change."""
    model, lesson = bench.model, bench.lesson
    rows = [(*lesson.bos, *query) for query in lesson.queries[:COMPARED]]

    def logits() -> Tensor:
        found = []
        for row in rows:
            with capturing(model, Session(acts=slice(None), query_ids=("",))):  # a patch acts inside alone
                found.append(model.forward(torch.tensor([row], device=model.device), keep=1)[0, -1].double())
        return torch.stack(found)

    assert learned.change is not None
    with model.running():
        plain = logits()
        with learned.change.applied(model):
            wanted = logits()
        with adapter_applied(model, layers):
            ours = logits()
    apart, moved = float((ours - wanted).abs().max()), float((wanted - plain).abs().max())
    if apart > CLOSE * max(moved, 1.0):
        raise InputError(
            f"model '{model.name}': LoRA cannot carry what the learner changed: the logits move by up to {moved:.2g}, "
            f"and the adapter's are {apart:.2g} away from them (a norm behind the MLP, as in Gemma 2, takes no bias "
            "before it); take kv-distilled or gd-tuned"
        )
    return apart


def _fidelity(bench: Bench, baked: Trace, ceiling: float | None) -> Fidelity:
    zero, icl, lesson = bench.zero_shot, bench.in_context, bench.lesson
    return Fidelity(
        queries=len(baked),
        chance=1 / len(lesson.answers),
        accuracy_zero_shot=accuracy(zero),
        accuracy_in_context=accuracy(icl),
        accuracy_baked=accuracy(baked),
        agreement=agreement(icl, baked),
        agreement_zero_shot=agreement(icl, zero),
        explained=explained_share(icl, zero, baked),
        explained_by_ceiling=ceiling,
        shots=lesson.shots_used,
        tokens_saved=len(lesson.context) - len(lesson.bos),
    )


def _drift(model: Model, task: Task, queries: int, layers: Mapping[str, CarriedChange]) -> Drift:
    """On another task's queries; its demonstrations are not read."""
    episode = Episode.draw(task, shots=1, seed=0, queries=queries)
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    before = model.read(lesson)
    with adapter_applied(model, layers):
        return drift_of(task.name, before, model.read(lesson))


CARD = "README.md"


def adapter_config(model: Model, layers: Mapping[str, CarriedChange], base: str) -> dict[str, Any]:
    """The fields that peft reads. Every layer has a rank of its own, and is scaled by 1."""
    ranks = {name: change.factors.rank for name, change in layers.items()}
    most = max(ranks.values())
    own = {name: rank for name, rank in ranks.items() if rank != most}
    modules = [model.hf.get_submodule(name) for name in layers]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "init_lora_weights": True,
        "r": most,
        "lora_alpha": most,
        "rank_pattern": own,
        "alpha_pattern": own,
        "lora_dropout": 0.0,
        "bias": "none",
        "lora_bias": any(change.bias is not None for change in layers.values()),
        "fan_in_fan_out": any(not isinstance(module, nn.Linear) for module in modules),
        "target_modules": sorted(layers),
    }


def adapter_tensors(layers: Mapping[str, CarriedChange]) -> dict[str, torch.Tensor]:
    """By the names that peft gives them."""
    biased = any(change.bias is not None for change in layers.values())
    found = {}
    for name, change in layers.items():
        path = f"base_model.model.{name}.lora"
        found[f"{path}_A.weight"] = change.factors.down.contiguous()
        found[f"{path}_B.weight"] = change.factors.up.contiguous()
        if biased:
            none = torch.zeros(len(change.factors.up))
            found[f"{path}_B.bias"] = (none if change.bias is None else change.bias).contiguous()
    return found


def check_new(out: Path) -> None:
    """Refuse a folder that is there already, before anything is computed."""
    if out.exists() or out.is_symlink():
        raise InputError(f"'{out}' exists; give a folder that does not exist yet")


def write_adapter(
    out: Path, model: Model, layers: Mapping[str, CarriedChange], base: str, card: str
) -> tuple[Path, Path, Path]:
    """Configuration, weights and card, written aside and put in place together."""
    check_new(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent)
    except OSError as error:
        raise InputError(f"'{out}' cannot be made ({error.strerror})") from None
    with aside as name:
        folder = Path(name) / "adapter"
        folder.mkdir()
        config = json.dumps(adapter_config(model, layers, base), indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(config + "\n", encoding="utf-8")
        (folder / CARD).write_text(card, encoding="utf-8")
        save_file(adapter_tensors(layers), str(folder / WEIGHTS), {"format": "pt"})
        for file in folder.iterdir():
            share(file)
            flush(file)
        flush(folder)
        check_new(out)
        os.rename(folder, out)
    flush(out.parent)
    return out / CONFIG, out / WEIGHTS, out / CARD
