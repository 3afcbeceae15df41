"""The card of a baked adapter: a README.md with a YAML head, in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import Tensor

from dualscope._version import __version__
from dualscope.core.statistics import share_of
from dualscope.metrics.explained import distribution, divergence, left_unexplained

if TYPE_CHECKING:
    from dualscope.baking.baked_adapter import BakedAdapter
    from dualscope.models.reading.trace import Trace


SEEN = 5e-4  # of the change's norm: what a card says was left out


def card_of(baked: BakedAdapter, base: str) -> str:
    """The whole text."""
    task, fidelity = baked.episode.task, baked.fidelity
    return "\n".join(
        [
            "---",
            yaml.safe_dump(_head(baked, base), sort_keys=False, allow_unicode=True).rstrip(),
            "---",
            "",
            f"# {fidelity.shots} demonstrations of {_text(task.name)}, baked into {_text(base)}",
            "",
            f"A LoRA adapter that puts {fidelity.shots} demonstrations into the model's weights, made by dualscope "
            f"{__version__} with the learner `{baked.learner}`. Ask it without demonstrations: the prompt is "
            f"`{_text(task.template)}`, after the tokenizer's BOS where it has one; the answers are "
            f"{', '.join(f'`{_text(word)}`' for word in task.labels)}.",
            "",
            "## How faithful it is",
            "",
            *_faithful(fidelity),
            "",
            "## What it does to other tasks",
            "",
            *_drifts(baked.drifts),
            "",
            "## What it is made of",
            "",
            *_made_of(baked),
            "",
            "## How to load it",
            "",
            *_how_to_load(baked),
            "",
        ]
    )


def _head(baked: BakedAdapter, base: str) -> dict[str, Any]:
    fidelity = baked.fidelity
    measured = {
        "queries": fidelity.queries,
        "accuracy_zero_shot": fidelity.accuracy_zero_shot,
        "accuracy_in_context": fidelity.accuracy_in_context,
        "accuracy_baked": fidelity.accuracy_baked,
        "agreement": fidelity.agreement,
        "agreement_zero_shot": fidelity.agreement_zero_shot,
        "explained": fidelity.explained,
        "share_of_ceiling": fidelity.share_of_ceiling,
        "tokens_saved_a_query": fidelity.tokens_saved,
        "share_of_change_lost": baked.lost,
        "logits_apart": baked.logits_apart,
    }
    return {
        "base_model": base,
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["lora", "dualscope"],
        "dualscope": {
            "version": __version__,
            "learner": baked.learner,
            "settings": {name: _plain(value) for name, value in baked.settings.items()},
            "task": baked.episode.task.name,
            "shots": fidelity.shots,
            "seed": baked.episode.seed,
            "rank": baked.rank,
            "fidelity": {name: _rounded(value) for name, value in measured.items()},
            "drift": [
                {
                    "task": drift.task,
                    "queries": drift.queries,
                    "accuracy_before": _rounded(drift.accuracy_before),
                    "accuracy_after": _rounded(drift.accuracy_after),
                    "answers_changed": _rounded(drift.changed),
                }
                for drift in baked.drifts
            ],
        },
    }


def _faithful(fidelity: Fidelity) -> list[str]:
    count = fidelity.queries
    lines = [
        f"Measured on {count} held-out queries: no demonstrations, and nothing that anything was fitted on.",
        "",
        "| | right answers | same answer as with the demonstrations in the prompt |",
        "| --- | --- | --- |",
        f"| no demonstrations | {_share(fidelity.accuracy_zero_shot)} | {_share(fidelity.agreement_zero_shot)} |",
        f"| demonstrations in the prompt | {_share(fidelity.accuracy_in_context)} | 100 % |",
        f"| **this adapter, no demonstrations** | {_share(fidelity.accuracy_baked)} | {_share(fidelity.agreement)} |",
        "",
        f"Guessing would be right {_share(fidelity.chance)} of the time. {_explained(fidelity)}",
        "",
        f"It saves {fidelity.tokens_saved} tokens a query.",
    ]
    warning = warning_of(fidelity)
    return [*lines, "", f"**{warning}**"] if warning else lines


def _explained(fidelity: Fidelity) -> str:
    if math.isnan(fidelity.explained):
        return "The demonstrations hardly change the answers of this model, so there was nothing to bake."
    own = _share(fidelity.explained)
    said = f"Of what the demonstrations do to the probabilities of the answers, the adapter does {own}"
    top = fidelity.explained_by_ceiling
    if top is None or math.isnan(top):
        return f"{said}."
    return f"{said}; the best change of keys and values that was found (kv-distilled) does {_share(top)}."


def warning_of(fidelity: Fidelity) -> str | None:
    """The warning that users of the adapter have to read first; None where the adapter is faithful."""
    if fidelity.agreement <= fidelity.agreement_zero_shot:
        return "It is no nearer to in-context learning than the model without demonstrations: do not use it."
    if fidelity.accuracy_baked < fidelity.accuracy_in_context - 0.05:
        return "It is right less often than the demonstrations in the prompt."
    return None


def _drifts(drifts: tuple[Drift, ...]) -> list[str]:
    if not drifts:
        return ["Not measured: no other task was given."]
    return [
        "Asked without demonstrations, before and after:",
        "",
        "| task | queries | right before | right after | answers that changed | divergence (nats) |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {_text(drift.task)} | {drift.queries} | {_share(drift.accuracy_before)} "
            f"| {_share(drift.accuracy_after)} | {_share(drift.changed)} | {drift.divergence:.3f} |"
            for drift in drifts
        ),
    ]


def _made_of(baked: BakedAdapter) -> list[str]:
    layers = baked.layers
    held = sum(change.factors.down.numel() + change.factors.up.numel() for change in layers.values())
    full = sum(change.factors.down.shape[1] * change.factors.up.shape[0] for change in layers.values())
    lines = [
        f"- It changes {len(layers)} linear layers, by products of rank {baked.rank} at most: {held:,} numbers, where "
        f"the weights of these layers are {full:,}."
    ]
    if baked.lost > SEEN:
        lines.append(
            f"- The change that was learned has a higher rank: the adapter leaves out {baked.lost:.1%} of its norm. "
            "The figures above are those of the adapter as it is."
        )
    else:
        lines.append("- The products are the change that was learned, to rounding: nothing was cut off.")
    if held > full:
        lines.append(
            "- It is larger than the weights that it changes, because the change has full rank: give a --rank."
        )
    lines.append(
        f"- Before any cut, its logits were within {baked.logits_apart:.1e} of those of the change that was learned."
    )
    if any(change.bias is not None for change in layers.values()):
        lines.append(
            "- Biases are among what it changes (`lora_bias`). Some versions of peft say of these that a tensor has an "
            "invalid shape; all of it is loaded nevertheless."
        )
    lines += [f"- {_text(note)}." for note in baked.notes]
    lines.append("- What the demonstrations say may be recovered from weights: share it as you would share them.")
    return lines


def _how_to_load(baked: BakedAdapter) -> list[str]:
    biased_alone = any(
        change.bias is not None and getattr(baked.model.hf.get_submodule(name), "bias", None) is None
        for name, change in baked.layers.items()
    )
    lines = [
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        "base = AutoModelForCausalLM.from_pretrained(BASE)  # the model that is named above",
        "model = PeftModel.from_pretrained(base, THIS_FOLDER)",
        "```",
    ]
    name = baked.model.name
    if name == "embedded":
        lines += ["", "BASE is the model that dualscope ships: the folder `models/embedded` of the installed package."]
    elif name.lower().endswith(".gguf"):
        lines += ["", "BASE is a GGUF file: give its folder, and its name as `gguf_file`."]
    if biased_alone:
        lines += [
            "",
            "It adds biases to layers that have none, so peft cannot merge it into the weights: keep it beside them.",
        ]
    return lines


def _share(value: float) -> str:
    return "not defined" if math.isnan(value) else f"{100 * value:.1f} %"


def _rounded(value: float | int | None) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(value: str) -> str:
    """A name or a template in Markdown: nothing in it is markup or a cell's end."""
    return escape(value, quote=False).replace("|", "\\|").replace("`", "'").replace("\n", " ")


# How faithful a model with a baked adapter is to the context that was baked.


@dataclass(frozen=True)
class Fidelity:
    """On held-out queries of the task."""

    queries: int
    chance: float
    accuracy_zero_shot: float
    accuracy_in_context: float
    accuracy_baked: float
    agreement: float  # share of queries that the baked model answers as in-context learning does
    agreement_zero_shot: float
    explained: float  # of the divergence between zero-shot's answers and in-context learning's
    explained_by_ceiling: float | None  # the same by kv-distilled; None: it was not fitted
    shots: int
    tokens_saved: int  # a query

    @property
    def share_of_ceiling(self) -> float | None:
        """What is explained, as a share of what the best change of keys and values explains."""
        if self.explained_by_ceiling is None:
            return None
        return self.explained / self.explained_by_ceiling if self.explained_by_ceiling > 0 else float("nan")


@dataclass(frozen=True)
class Drift:
    """What an adapter does to another task's queries, asked without demonstrations."""

    task: str
    queries: int
    accuracy_before: float
    accuracy_after: float
    changed: float  # share of answers that are others
    divergence: float  # mean KL(before || after) of the labels, in nats


def explained_share(icl: Trace, zero_shot: Trace, own: Trace) -> float:
    """The metric ``explained`` of one trace; NaN where zero-shot says what in-context learning says."""
    target = distribution(icl.label_logprobs)
    left, whole = (float(left_unexplained(target, t.label_logprobs).mean()) for t in (own, zero_shot))
    return float(share_of(left, whole))


def agreement(one: Trace, other: Trace) -> float:
    """The share of queries that two traces answer alike."""
    return _mean(one.predictions.cpu() == other.predictions.cpu())


def accuracy(trace: Trace) -> float:
    return _mean(trace.correct)


def drift_of(task: str, before: Trace, after: Trace) -> Drift:
    """Of the same queries, without and with the adapter."""
    apart = divergence(distribution(before.label_logprobs), distribution(after.label_logprobs))
    changed = 1 - agreement(before, after)
    return Drift(task, len(before), accuracy(before), accuracy(after), changed, float(apart.mean()))


def _mean(which: Tensor) -> float:
    return float(which.to(torch.float64).mean())
