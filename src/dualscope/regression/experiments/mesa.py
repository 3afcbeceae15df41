"""von Oswald et al. 2023b: transformers trained to continue sequences that have their own dynamics."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size
from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.baselines import ONE_STEP, RIDGE, closed_forms, preconditioned
from dualscope.regression.emergence import APPEARS, arrived, note_training
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Seeds, Steps
from dualscope.regression.probes import ROWS, probed
from dualscope.regression.problems import LinearDynamics, generators
from dualscope.regression.results import Results, interval, shown, shown_mean
from dualscope.regression.training import REST, Schedule, Training, Workplace, drawn_ahead, fast, train

LATE = "late squared error"
PRECONDITIONED, ANSWER = "preconditioned state", "ridge's guess"  # what probes look for
# Layers of linear attention are a polynomial of a high degree, which one sequence in a thousand (long, or in few of the
# dimensions) blows up so far that it decides the mean error of all. Of states, one entry in a million is larger.
LARGEST = 6.0
Architecture = Transformer | Gpt2Learner


@EXPERIMENTS.register("mesa")
class Mesa(Experiment):
    """s_{t+1} = W s_t + noise, W orthogonal and new for each sequence (a choice: the paper's exact settings
    are not known to us). Linear attention sees tokens (0, s_t, s_{t-1}), and the first third of a token after the
    last layer is its guess of s_{t+1}; GPT-2 blocks see s_t alone.
    """

    summary: ClassVar[str] = "linear dynamics in context: trained layers against GD steps and least squares, probed"
    compiles: ClassVar[bool] = True

    seeds: Seeds = (0, 1, 2)
    steps: Steps = 1500
    d: int = 10
    length: int = 50
    noise: float = 0.1
    depths: tuple[int, ...] = (1, 2)  # of linear attention
    heads: int = 2
    layers: int = 4  # of GPT-2; 0: none
    width: int = 64
    batch: int = 64
    rate: float = 2e-3
    gpt2_rate: float = 3e-3
    warmup: int = 100
    test: int = 1000

    @property
    def trainings(self) -> int:
        return len(self.depths) + (self.layers > 0)

    def carry_out(self, results: Results, place: Workplace) -> None:
        dynamics = LinearDynamics(self.d, self.length, self.noise)
        test = dynamics.draw_for(self.test, generators(self.seeds, 2))
        (search,) = (dynamics.draw(min(self.test, 300), g) for g in generators([0], 3))
        forms = closed_forms(search, (1, *self.depths))
        found = {name: form(test) for name, form in forms.items()}
        names: dict[str, Architecture] = {}
        for depth in self.depths:
            names[f"{depth} linear layer{'s' * (depth > 1)}"] = Transformer(
                3 * self.d,
                depth,
                generators(self.seeds, 10 * depth),
                causal=True,
                heads=self.heads,
                scale=0.1,
                largest=LARGEST,
            )
        if self.layers:
            size = Size(self.layers, self.width, max(1, self.width // 32))
            names[f"GPT-2, {self.layers} layers"] = Gpt2Learner(
                self.d, self.length, self.seeds, size, outputs=self.d, pairs=False
            )
        for number, (name, model) in enumerate(names.items()):
            training = self._train(model.to(place.device), dynamics, number, place.of(f"{number}"))
            model.requires_grad_(False)
            parts = (guess_next(model, part.to(place.device)).cpu() for part in test.split(200, 1))
            found[name] = torch.cat(list(parts), 1)
            self._note(results, name, training)
            self._probe(results, name, model, dynamics, forms)
        self._compare(results, found, test, list(names))

    def conclude(self, results: Results) -> None:
        self._judge_order(results)
        lower = "The claim is borne out where layers err less than one step of GD, and deep models no more than ridge."
        results.figure("squared error", "Error against the number of states seen", log_y=True, reads=lower)
        reads = (
            "The claim is borne out where early layers hold what the answer is made of (the state before, the "
            "preconditioned state), and late ones the answer itself: ridge's guess."
        )
        title = "What a linear probe reads off each layer (share of variance)"
        results.figure("probed", title, span=(-0.2, 1.05), reads=reads)
        results.figure(LATE, "Error in training, last 10 states", marks=APPEARS, log_y=True)
        results.figure("mean squared error", "Error, mean over the sequence", reads=lower)
        results.figure("error at the end", "Error at the end of sequences", reads=lower)

    def _judge_order(self, results: Results) -> None:
        """Of models of several layers: whether they precondition first and answer later."""
        for name in dict.fromkeys(row["panel"] for row in results.rows if row["metric"] == "probed"):
            early, late = (results.curves(sought, "probed", name) for sought in (PRECONDITIONED, ANSWER))
            if max(next(iter(early.values()))) < 2:
                continue
            first, then = ([max(curve, key=curve.__getitem__) for curve in of.values()] for of in (early, late))
            found = [
                f"{sought} layer {', '.join(f'{layer:g}' for layer in at)}: "
                + shown(*interval([curve[layer] for curve, layer in zip(of.values(), at, strict=True)]))
                for sought, of, at in ((PRECONDITIONED, early, first), (ANSWER, late, then))
            ]
            results.check(
                f"{name}: the {PRECONDITIONED} is read best off an earlier layer than {ANSWER}, and better than off "
                "the tokens, in every seed",
                "; ".join(found),
                all(0 < before < after for before, after in zip(first, then, strict=True)),
            )

    def _train(self, model: Architecture, dynamics: LinearDynamics, number: int, place: Workplace) -> Training:
        linear = isinstance(model, Transformer)
        shown_sequences = dynamics.draw_for(128, generators(self.seeds, 4, place.device))
        if place.compiled and isinstance(model, Gpt2Learner):
            model.compile_blocks()

        def draw(step: int, tasks: int) -> tuple[Tensor, ...]:
            return (dynamics.draw_for(tasks, generators(self.seeds, 20 + number, place.device, step)),)

        def loss(sequences: Tensor) -> Tensor:
            with nullcontext() if linear else fast(place.device):
                guess = guess_next(model, sequences)
            return (guess.float() - sequences[:, :, 1:]).square().sum(-1).mean((1, 2))

        @torch.no_grad()
        def watch() -> dict[str, Tensor]:
            errors = (guess_next(model, shown_sequences) - shown_sequences[:, :, 1:]).square().sum(-1).mean(1)
            return {LATE: errors[:, -10:].mean(-1)}

        rate = self.rate if linear else self.gpt2_rate
        # Of linear ones, a deeper one has more to learn, and each of its steps takes longer.
        share = model.depth * len(self.depths) / sum(self.depths) if isinstance(model, Transformer) else 1.0
        minutes = None if self.minutes is None else self.minutes * share
        schedule = Schedule(self.steps, rate, 1.0, rate / 20, self.warmup, minutes, spectral=not linear, rest=REST)
        return train(model, drawn_ahead(self.batch, draw), loss, schedule, place, watch, max(1, self.steps // 40))

    def _note(self, results: Results, name: str, training: Training) -> None:
        level = 0.75 * self.d * (1 + self.length * self.noise**2 / 2)  # of what guessing 0 costs on average
        appeared = note_training(results, training, LATE, level, name, self.seeds)
        results.notes[f"steps, {name}"] = training.steps
        seen = [step for step in appeared if step is not None]
        rested = arrived(training.curve(LATE), 0.05)
        results.check(
            f"{name}: learns in context in every seed, and training has come to rest",
            f"{len(seen)} of {len(appeared)} seeds"
            + (f", from step {min(seen)}" if seen else "")
            + ("" if rested else "; the error still falls"),
            len(seen) == len(appeared) and rested,
        )

    def _compare(self, results: Results, found: dict[str, Tensor], test: Tensor, trained: list[str]) -> None:
        target = test[:, :, 1:]
        rows, late = [], {}
        for name, guess in found.items():
            errors = (guess - target).square().sum(-1).mean(1)  # [seeds, length]
            by_time = {t: errors[:, t] for t in range(self.length)}
            results.over_x(name, "squared error", by_time, self.seeds, "t", "time")
            late[name] = errors[:, -10:].mean(-1)
            rows.append(
                (
                    name,
                    shown(*results.over_seeds(name, "mean squared error", errors.mean(-1), self.seeds)),
                    shown(*results.over_seeds(name, "error at the end", late[name], self.seeds)),
                )
            )
        title = f"|guess - next state|^2, W orthogonal, d = {self.d}, T = {self.length}, noise {self.noise:g}"
        results.table(title, ("learner", "all t", "last 10 t"), rows)
        single = trained[0] if 1 in self.depths[:1] else None
        if single:
            apart = float((late[single] / late[ONE_STEP] - 1).mean())
            results.check(f"{single}: within 5 % of {ONE_STEP}, or below", f"{100 * apart:+.1f} %", apart <= 0.05)
        for name in trained:
            if name == single:
                continue
            results.check(
                f"{name}: below {ONE_STEP} at the end of sequences, in every seed",
                f"{shown_mean(late[name])} against {shown_mean(late[ONE_STEP])}",
                bool((late[name] < late[ONE_STEP]).all()),
            )
        last = trained[-1]
        share = (late[ONE_STEP] - late[last]) / (late[ONE_STEP] - late[RIDGE])
        results.check(
            f"{last}: covers at least 90 % of the way from {ONE_STEP} to {RIDGE}",
            shown_mean(share),
            float(share.mean()) >= 0.9,
        )

    def _probe(
        self,
        results: Results,
        name: str,
        model: Architecture,
        dynamics: LinearDynamics,
        forms: dict[str, Callable[[Tensor], Tensor]],
    ) -> None:
        """Of each layer at the later half of times: the state before, the state after preconditioning, and ridge's own
        guess.
        """
        times = list(range(self.length // 2, self.length, max(1, self.length // 10)))
        width = self.width if isinstance(model, Gpt2Learner) else 3 * self.d
        some = dynamics.draw_for(ROWS * width // len(times), generators(self.seeds, 5))
        device = next(model.parameters()).device
        parts = [
            [state[:, :, times].float().cpu() for state in states_by_layer(model, part.to(device))]
            for part in some.split(200, 1)
        ]
        states = [torch.cat(layer, 1) for layer in zip(*parts, strict=True)]
        now, before = some[..., 1:-1, :], some[..., :-2, :]
        wanted = {
            "state before": torch.cat([torch.zeros_like(now[..., :1, :]), before], -2),
            PRECONDITIONED: preconditioned(some),
            ANSWER: forms[RIDGE](some),
        }
        for quantity, values in wanted.items():
            sought = values[:, :, times].flatten(1, 2)
            shares = {layer: probed(state.flatten(1, 2), sought) for layer, state in enumerate(states)}
            results.over_x(quantity, "probed", shares, self.seeds, "layer", name)


def guess_next(model: Architecture, sequences: Tensor) -> Tensor:
    """[copies, tasks, length + 1, d] -> the guess of each next state, [copies, tasks, length, d]."""
    if isinstance(model, Transformer):
        return guesses(model, sequences)
    return model.read_out(model.hidden(sequences[..., :-1, :])[-1])


@torch.no_grad()
def states_by_layer(model: Architecture, sequences: Tensor) -> list[Tensor]:
    """[copies, tasks, length, width] before the first layer and after each."""
    if isinstance(model, Transformer):
        return model.states(tokens_of(sequences))
    return model.hidden(sequences[..., :-1, :], keep=True)


def guesses(model: Transformer, sequences: Tensor) -> Tensor:
    """[copies, tasks, length + 1, d] -> the guess of each next state, [copies, tasks, length, d]."""
    found: Tensor = model(tokens_of(sequences))[..., : sequences.shape[-1]]
    return found


def tokens_of(sequences: Tensor) -> Tensor:
    """(0, s_t, s_{t-1}): [..., length, 3 d]."""
    now = sequences[..., :-1, :]
    before = torch.cat([torch.zeros_like(now[..., :1, :]), now[..., :-1, :]], -2)
    return torch.cat([torch.zeros_like(now), now, before], -1)
