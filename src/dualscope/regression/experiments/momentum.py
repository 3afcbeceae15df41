"""Momentum attention in small language models (after Dai et al.): does it help, all else equal?"""

import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from dualscope.core.errors import InputError
from dualscope.regression.emergence import APPEARS, first_below, when_equal
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds, Steps
from dualscope.regression.results import Results, interval, shown, shown_mean
from dualscope.regression.training import Workplace
from dualscope.training.corpus import Mixture, draw_batch
from dualscope.training.evaluation import SHOTS, evaluate
from dualscope.training.settings import Settings

VANILLA: Literal["vanilla"] = "vanilla"
MOMENTUM: Literal["momentum"] = "momentum"
LOSS = "loss on label words"
HELD_OUT = "accuracy, held-out tasks"
ACCURACY = f"{HELD_OUT}, 8 shots"
BEGUN = "steps until in-context learning"
LEVEL = 0.5  # of 8-shot accuracy on held-out tasks of 2 to 4 classes, where chance is 0.36


@EXPERIMENTS.register("momentum")
class MomentumLanguageModels(Experiment):
    """Pairs of GPT-2s on the generated corpus: the same seed, text, order and budget; only the attention
    differs. Trained until both learn in context, and compared after as many steps and at the same loss.
    """

    summary: ClassVar[str] = "language models with and without momentum attention, at equal steps and equal loss"
    compiles: ClassVar[bool] = True

    seeds: Seeds = (0, 1, 2, 3)
    steps: Steps = 2000
    kinds: tuple[Literal["vanilla", "momentum"], ...] = (VANILLA, MOMENTUM)
    eta: float = 0.5
    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 256
    batch: int = 32
    rate: float = 1e-3
    short_steps: int | None = None  # on sequences of half the length, first; None: four ninths of all
    mixture: Mixture = Mixture()
    """Of the text; where few sequences have labels that can be known by heart, the prompt has to be read."""
    sequences: int = 32  # contexts a task, to measure accuracy
    workers: int | None = None  # processes that write text ahead; None: as many as the device needs

    @property
    def trainings(self) -> int:
        return len(self.kinds) * len(self.seeds)

    def carry_out(self, results: Results, place: Workplace) -> None:
        attention = {VANILLA: None, MOMENTUM: {"name": "momentum", "eta": self.eta}}
        for seed in self.seeds:
            for name in self.kinds:
                self._measure(results, name, seed, attention[name], place)

    def _measure(
        self, results: Results, name: str, seed: int, attention: dict[str, Any] | None, place: Workplace
    ) -> None:
        from dualscope.training.training_loop import train as train_model  # the loop needs more than the rest

        settings = Settings(
            steps=self.steps,
            short_steps=self.steps * 4 // 9 if self.short_steps is None else self.short_steps,
            batch=self.batch,
            length=self.length,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            lr=self.rate,
            warmup=min(300, max(1, self.steps // 10)),
            seed=seed,
            attention=attention,
            minutes=self.minutes,
            mixture=self.mixture,
        )
        done = 0

        def watch(progress: Any) -> None:
            nonlocal done
            place.advance(progress.step - done)
            done = progress.step

        where = place.of(f"{name}-{seed}").checkpoints
        with tempfile.TemporaryDirectory() if where is None else nullcontext(str(where)) as folder:
            workers = self.workers if self.workers is not None else 0 if place.device.type == "cpu" else 2
            options: dict[str, Any] = {
                "save_every": 0 if where is None else 1000,
                "evaluate_every": max(1, self.steps // 48),
                "sequences": max(1, self.sequences // 4),
                "workers": workers,
                "compiled": place.compiled,
            }
            model = train_model(settings, Path(folder), str(place.device), watch=watch, **options)
            facts = json.loads((Path(folder) / "training.json").read_text())
        place.advance(self.steps - done)
        results.notes[f"steps, {name}, seed {seed}"] = facts["steps_done"]
        for line in facts["log"]:
            if "held-out" in line:
                at: dict[str, Any] = {"panel": "training", "x_name": "step", "x": line["step"], "seed": seed}
                results.add(name, LOSS, line["loss"], **at)
                shots = str(min(8, max(int(k) for k in line["held-out"])))
                results.add(name, ACCURACY, line["held-out"][shots], **at)
        accuracy = evaluate(model, self.length, self.sequences, seed)["mean"]
        results.add(name, "perplexity", perplexity(model, settings), seed=seed)
        for kind in ("embedded", "held_out"):
            for k in SHOTS:
                if str(k) in accuracy[kind]:
                    metric = f"accuracy, {kind.replace('_', '-')} tasks"
                    at = {"panel": "shots", "x_name": "shots", "x": k, "seed": seed}
                    results.add(name, metric, accuracy[kind][str(k)], **at)

    def conclude(self, results: Results) -> None:
        names = (VANILLA, MOMENTUM)
        losses = {name: results.curves(name, LOSS) for name in names}
        right = {name: results.curves(name, ACCURACY) for name in names}
        if not all(losses[name] for name in names):
            raise InputError("momentum: both models of a pair are needed to compare them")
        for name in names:
            for seed in self.seeds:
                # Accuracy rises: what falls below is 1 - accuracy.
                falling = {int(step): [1 - value] for step, value in right[name][seed].items()}
                (step,) = first_below(falling, 1 - LEVEL)
                if step is not None:
                    results.add(name, APPEARS, step, panel="training", x_name="step", x=step, seed=seed)
                    results.add(name, BEGUN, step, seed=seed)
        appeared = {name: results.values(name, APPEARS) for name in names}
        missing = [name for name in names if len(appeared[name]) < len(self.seeds)]
        said = "; ".join(
            f"{name}: {len(appeared[name])} of {len(self.seeds)} seeds"
            + (f", step {shown_mean(list(appeared[name].values()))}" if appeared[name] else "")
            for name in names
        )
        results.check(f"in-context learning appears in every model ({ACCURACY} >= {LEVEL})", said, not missing)
        for name in names:
            for seed in self.seeds:
                level = max(list(losses[other][seed].values())[-1] for other in names)
                reached, accuracy = when_equal(losses[name][seed], right[name][seed], level)
                results.add(name, "step at equal loss", reached, seed=seed)
                results.add(name, f"{ACCURACY}, at equal loss", accuracy, seed=seed)
                # Where time ended one training earlier, the last step that both have.
                common = max(set(right[VANILLA][seed]) & set(right[MOMENTUM][seed]))
                results.add(name, f"{ACCURACY}, at equal steps", right[name][seed][common], seed=seed)
                results.add(name, f"{LOSS}, at equal steps", losses[name][seed][common], seed=seed)
        change = self._compare(results)
        shots = max(x for metric, x in change if metric == HELD_OUT and x is not None and x <= 8)
        lower, higher = change["perplexity", None], change[HELD_OUT, shots]
        said = "difference {}, paired by seed"
        results.check("momentum attention lowers the perplexity", said.format(shown(*lower)), lower[2] < 0)
        claim = f"momentum attention raises the {HELD_OUT}, {shots:g} shots"
        results.check(claim, said.format(shown(*higher)), higher[1] > 0)
        reads = "Higher is learned more."
        results.figure(ACCURACY, "In-context accuracy in training", marks=APPEARS, span=(0.0, 1.0), reads=reads)
        results.figure(LOSS, "Loss in training", log_y=True)
        reads = "The difference is paired by seed: where its interval holds zero, none was found."
        for metric in dict.fromkeys(metric for metric, _ in change):
            results.figure(metric, metric[0].upper() + metric[1:], reads=reads)

    def _compare(self, results: Results) -> dict[tuple[str, float | None], tuple[float, float, float]]:
        """(metric, x) -> the mean difference between models of a pair, and its interval."""
        keys = dict.fromkeys(
            (row["metric"], row["panel"], row["x_name"], row["x"])
            for row in results.rows
            if row["series"] == VANILLA and row["seed"] is not None and row["metric"] != APPEARS
        )
        rows, differences = [], {}
        for metric, panel, x_name, x in keys:
            where: dict[str, Any] = {"panel": panel, "x_name": x_name, "x": x}
            of: dict[str, dict[int, float]] = {VANILLA: {}, MOMENTUM: {}}
            for row in results.rows:
                if row["seed"] is not None and row["metric"] == metric and row["x"] == x and row["series"] in of:
                    of[row["series"]][row["seed"]] = row["value"]
            if set(of[VANILLA]) != set(self.seeds) or set(of[MOMENTUM]) != set(self.seeds):
                continue  # trainings that time ended have no such step
            cells = []
            for name, values in of.items():
                found = interval([values[seed] for seed in self.seeds])
                results.add(name, metric, found[0], low=found[1], high=found[2], n=len(self.seeds), **where)
                cells.append(shown(*found))
            if panel != "training":
                change = [of[MOMENTUM][seed] - of[VANILLA][seed] for seed in self.seeds]
                paired = results.over_seeds("momentum minus vanilla", metric, change, self.seeds, **where)
                differences[metric, x] = paired
                rows.append((metric if x is None else f"{metric}, {x:g} shots", *cells, shown(*paired)))
        title = f"At most {self.steps} steps each, eta {self.eta:g}; mean over seeds [95 % interval]"
        results.table(title, ("", VANILLA, MOMENTUM, "difference, paired"), rows)
        return differences


@torch.no_grad()
def perplexity(model: Any, settings: Settings, batches: Sequence[int] = range(8)) -> float:
    """exp of the mean cross-entropy over all tokens of text that no training saw (a stream of its own)."""
    losses = []
    for number in batches:
        batch = draw_batch(settings.seed, 10**9 + number, 8, settings.length, settings.mixture)
        tokens = torch.as_tensor(batch.tokens).long().to(next(model.parameters()).device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    return float(torch.stack(losses).mean().exp())
