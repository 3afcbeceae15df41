"""Momentum attention in small language models (after Dai et al.): does it help, all else equal?"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from dualscope.models.hardware import resolve
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds
from dualscope.regression.results import Results, shown
from dualscope.regression.training import Advance, silent
from dualscope.training.corpus import draw_batch
from dualscope.training.evaluation import SHOTS, evaluate
from dualscope.training.loop import train as train_model
from dualscope.training.settings import Settings

VANILLA = "vanilla"


@EXPERIMENTS.register("momentum")
class MomentumLanguageModels(Experiment):
    """Pairs of GPT-2s on the generated corpus: the same seed, text, order and budget; only the attention
    differs.
    """

    summary: ClassVar[str] = "language models with and without momentum attention"
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": (0, 1),
        "steps": 3,
        "layers": 2,
        "width": 32,
        "heads": 2,
        "length": 128,
        "batch": 2,
        "sequences": 2,
    }

    seeds: Seeds = (0, 1, 2, 3)
    steps: int = 2000
    eta: float = 0.5
    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 256
    batch: int = 32
    sequences: int = 32  # contexts a task, to measure accuracy
    device: str = "cpu"
    workers: int | None = None  # processes that write text ahead; None: as many as the device needs

    @property
    def work(self) -> int:
        return 2 * len(self.seeds) * self.steps

    def run(self, advance: Advance = silent) -> Results:
        return momentum_language_models(self, advance)


def momentum_language_models(experiment: MomentumLanguageModels, advance: Advance = silent) -> Results:
    """Perplexity on fresh text, and in-context accuracy on embedded and held-out tasks; differences are
    paired by seed.
    """
    results = Results("momentum")
    place = resolve(experiment.device)
    kinds = {
        VANILLA: None,
        f"momentum, eta = {experiment.eta:g}": {"name": "momentum", "eta": experiment.eta},
    }
    found = {
        name: [_measured(experiment, seed, attention, place, advance) for seed in experiment.seeds]
        for name, attention in kinds.items()
    }
    rows = []
    for metric, x in sorted(found[VANILLA][0]):
        cells = []
        where = {} if x is None else {"panel": "shots", "x_name": "shots", "x": x}
        for name, by_seed in found.items():
            values = [measured[metric, x] for measured in by_seed]
            cells.append(shown(*results.over_seeds(name, metric, values, experiment.seeds, **where)))
        other, plain = (found[name] for name in reversed(kinds))
        change = [a[metric, x] - b[metric, x] for a, b in zip(other, plain, strict=True)]
        series = "momentum minus vanilla"
        cells.append(shown(*results.over_seeds(series, metric, change, experiment.seeds, **where)))
        rows.append((metric if x is None else f"{metric}, {x} shots", *cells))
    title = f"{experiment.steps} steps each, mean over seeds [95 % interval]"
    results.table(title, ("", *kinds, "difference, paired"), rows)
    return results


def _measured(
    experiment: MomentumLanguageModels,
    seed: int,
    attention: dict[str, Any] | None,
    place: torch.device,
    advance: Advance,
) -> dict[tuple[str, Any], float]:
    settings = Settings(
        steps=experiment.steps,
        short_steps=experiment.steps * 4 // 9,
        batch=experiment.batch,
        length=experiment.length,
        layers=experiment.layers,
        width=experiment.width,
        heads=experiment.heads,
        warmup=min(300, max(1, experiment.steps // 10)),
        seed=seed,
        attention=attention,
    )
    done = 0

    def watch(progress: Any) -> None:
        nonlocal done
        advance(progress.step - done)
        done = progress.step

    with tempfile.TemporaryDirectory() as folder:
        workers = experiment.workers if experiment.workers is not None else 0 if place.type == "cpu" else 8
        options: dict[str, Any] = {"save_every": 0, "evaluate_every": 0, "sequences": 1, "workers": workers}
        model = train_model(settings, Path(folder), str(place), watch=watch, **options)
    accuracy = evaluate(model, experiment.length, experiment.sequences, seed)["mean"]
    found: dict[tuple[str, Any], float] = {("perplexity", None): perplexity(model, settings)}
    for kind in ("embedded", "held_out"):
        for shots in SHOTS:
            if str(shots) in accuracy[kind]:
                found[f"accuracy, {kind.replace('_', '-')} tasks", shots] = accuracy[kind][str(shots)]
    return found


@torch.no_grad()
def perplexity(model: Any, settings: Settings, batches: Sequence[int] = range(8)) -> float:
    """exp of the mean cross-entropy over all tokens of text that no training saw (a stream of its own)."""
    losses = []
    for number in batches:
        tokens = torch.as_tensor(draw_batch(settings.seed, 10**9 + number, 8, settings.length).tokens).long()
        tokens = tokens.to(next(model.parameters()).device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    return float(torch.stack(losses).mean().exp())
