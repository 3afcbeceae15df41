"""The training loop: batches in, a folder that ``--model`` takes out; stopped, it goes on where it was."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import text_of
from dualscope.tasks.synthetic.generated_words import LEXICON
from dualscope.training.checkpoint import ignore_interrupts, load_checkpoint, load_state, save_checkpoint, uninterrupted
from dualscope.training.corpus import draw_batch
from dualscope.training.evaluation import evaluate
from dualscope.training.model_folder import check_finite, finished, save_model, whole_folder
from dualscope.training.settings import Settings


@dataclass(frozen=True)
class Progress:
    """What the loop tells its caller."""

    step: int
    done: float  # 0 to 1
    loss: float  # on label words
    rate: float
    seconds: float
    evaluation: dict[str, Any] | None = None


class _Steps(Dataset[tuple[Tensor, Tensor]]):
    """Step -> its batch, so that worker processes can write batches ahead."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        batch = draw_batch(self.settings.seed, step, *self.settings.shape(step), self.settings.mixture)
        return torch.from_numpy(batch.tokens), torch.from_numpy(batch.is_label)


def make_model(settings: Settings) -> GPT2LMHeadModel:
    """A GPT-2 of the settings' size with weights drawn from the seed."""
    config = GPT2Config(
        vocab_size=settings.vocabulary,
        n_positions=settings.length,
        n_embd=settings.width,
        n_layer=settings.layers,
        n_head=settings.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",  # GPT-2's, in one kernel
        bos_token_id=LEXICON.id("<bos>"),
        eos_token_id=LEXICON.id("<eos>"),
    )
    torch.manual_seed(settings.seed)
    model = GPT2LMHeadModel(config)
    if settings.attention:
        from dualscope.models.attention_kinds import apply  # only here: it needs more than torch

        apply(model, settings.attention)  # and notes it in the configuration, for later loading
    return model


def label_losses(model: Any, tokens: Tensor, is_label: Tensor, all_tokens: float) -> tuple[Tensor, Tensor]:
    """The loss that is trained on, and its part on label words; tokens, is_label: [sequences, length]."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    marks = is_label[:, 1:].flatten()
    on_labels = (each * marks).sum() / marks.sum()
    return on_labels + all_tokens * each.mean(), on_labels.detach()


def train(
    settings: Settings,
    out: Path,
    device: str = "cpu",
    workers: int = 0,
    compiled: bool = False,
    save_every: int = 500,
    evaluate_every: int = 1000,
    keep_every: int = 0,
    sequences: int = 64,
    watch: Callable[[Progress], None] = lambda _progress: None,
) -> GPT2LMHeadModel:
    """Train until the settings' end and save to ``out``; a checkpoint of the same settings there is resumed.

    ``save_every`` and ``evaluate_every``: 0 means only at the end. An interruption leaves a checkpoint in any case.
    ``keep_every``: after so many steps the model is kept as it is, the untrained one too, in ``out/checkpoint-STEP``.
    """
    folder = out / "checkpoint"
    state = _resume(out, settings) or {"step": 0, "seconds": 0.0, "log": []}
    _check_writable(out)
    model = make_model(settings)
    model.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps torch's own method
    on_gpu = torch.device(device).type == "cuda"
    optimizer = _optimizer(model, settings, on_gpu)
    if state["step"]:
        load_checkpoint(folder, model, optimizer)
    losses = torch.compile(label_losses, dynamic=False) if compiled else label_losses
    step, log, before = int(state["step"]), list(state["log"]), float(state["seconds"])
    model.train()
    if on_gpu:
        _warm(losses, model, settings, device)
    began = time.monotonic() - before

    def facts_now(final: GPT2LMHeadModel) -> dict[str, Any]:
        return {
            "settings": settings.as_dict(),
            "steps_done": step,
            "seconds": round(time.monotonic() - began, 1),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "parameters": sum(p.numel() for p in final.parameters()),
        }

    def keep() -> None:
        kept = finished(model, settings)
        with whole_folder(out / f"checkpoint-{step}") as aside:
            save_model(kept, aside, facts_now(kept))

    def checkpoint() -> None:
        seconds = time.monotonic() - began
        now = {"step": step, "seconds": seconds, "log": log, "settings": settings.as_dict()}
        save_checkpoint(folder, model, optimizer, now)

    try:
        if keep_every and step == 0:
            keep()
        for tokens, is_label in _batches(settings, step, workers, device):
            seconds = time.monotonic() - began
            done = settings.progress(step, seconds)
            if done >= 1:
                break
            rate = settings.rate(step, done)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
                loss, on_labels = losses(model, tokens, is_label, settings.all_tokens)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            with uninterrupted():
                optimizer.step()
                step += 1
            evaluation = None
            if evaluate_every and step % evaluate_every == 0:
                evaluation = evaluate(model, settings.length // 2, sequences, settings.seed)["mean"]
            if evaluation or step % 50 == 0 or step == settings.steps:
                # .item() waits for the device, so it is asked for seldom
                note = Progress(step, done, float(on_labels.item()), rate, time.monotonic() - began, evaluation)
                if evaluation or step == settings.steps:
                    log.append(_noted(note))
                watch(note)
            if keep_every and step % keep_every == 0:
                keep()
            if save_every and step % save_every == 0:
                checkpoint()
        final = finished(model, settings)
        check_finite(final)
        facts = facts_now(final) | {
            "evaluation": evaluate(final, settings.length, 4 * sequences, settings.seed + 1),
            "log": log,
        }
        save_model(final, out, facts)
    except KeyboardInterrupt:
        if step:
            checkpoint()
        raise
    return final


def _noted(note: Progress) -> dict[str, Any]:
    """A line of the log: where the training was, and what it could do."""
    line = {"step": note.step, "seconds": round(note.seconds, 1), "loss": round(note.loss, 4)}
    return line | {kind.replace("_", "-"): curve for kind, curve in (note.evaluation or {}).items()}


def _optimizer(model: GPT2LMHeadModel, settings: Settings, fused: bool) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), fused=fused)


def _resume(out: Path, settings: Settings) -> dict[str, Any] | None:
    """The state of the checkpoint in ``out``, if any; what was trained with other settings is refused."""
    state = load_state(out / "checkpoint")
    if state is not None:
        _check_same(out / "checkpoint", state["settings"], settings)
        return state
    facts = out / "training.json"
    if facts.exists():
        try:
            stored = json.loads(text_of(facts))["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            stored = None
        if not isinstance(stored, dict):
            raise InputError(f"{facts}: does not say how its model was trained; give another --out")
        _check_same(out, stored, settings)
    elif (out / "config.json").exists():
        raise InputError(f"{out} holds a model that dualscope did not train; give another --out")
    return None


def _check_same(place: Path, stored: dict[str, Any], settings: Settings) -> None:
    mine = json.loads(json.dumps(settings.as_dict()))  # as JSON keeps it
    for name, value in mine.items():
        if stored.get(name) != value:
            raise InputError(
                f"{place} holds a training with {name} {stored.get(name)}, and {value} was asked for; "
                "give the same options, or another --out"
            )


def _check_writable(out: Path) -> None:
    """Before hours are spent."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; a model is a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written to ({error.strerror}); give another folder") from None


def _batches(settings: Settings, start: int, workers: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        _Steps(settings),
        batch_size=None,
        sampler=range(start, settings.steps),
        num_workers=workers,
        worker_init_fn=ignore_interrupts,
        prefetch_factor=8 if workers else None,
        pin_memory=torch.device(device).type == "cuda",
    )
    for tokens, is_label in loader:
        yield tokens.to(device, non_blocking=True).long(), is_label.to(device, non_blocking=True)


def _warm(losses: Callable[..., Any], model: GPT2LMHeadModel, settings: Settings, device: str) -> None:
    """Both shapes once, forward and backward: compilers and kernels start here, not on the training's clock."""
    for step in {0, settings.short_steps}:
        tokens = torch.zeros(settings.shape(step), dtype=torch.long, device=device)
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = losses(model, tokens, torch.ones_like(tokens, dtype=torch.bool), settings.all_tokens)
        loss.backward()
    model.zero_grad(set_to_none=True)
