"""von Oswald et al. 2023: a trained linear self-attention layer against a step of gradient descent."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dualscope.regression.architectures.constructed import best_eta, best_eta_gamma, gd_transformer, repeat
from dualscope.regression.architectures.transformer import Transformer, chosen, copies_of
from dualscope.regression.baselines import alignment, half_mse
from dualscope.regression.emergence import arrived
from dualscope.regression.experiment import EXPERIMENTS, Experiment, Steps
from dualscope.regression.problems import Linear, TaskBatch, draw_for, generators
from dualscope.regression.results import Results, shown, shown_mean
from dualscope.regression.training import REST, Schedule, Training, Workplace, drawn_ahead, train

MEASURES = ("loss", "prediction difference", "sensitivity cosine", "sensitivity distance")
PLACES = tuple(i / 10 for i in range(11))  # 0 is the trained layer, 1 the constructed one
GD, PLUS = "GD", "GD++"


@EXPERIMENTS.register("vonoswald")
class VonOswald(Experiment):
    """Linear attention, one layer to five, with the same weights in every layer (recurrent) and with weights of their
    own; each deeper model starts from the one before it.

    Their tasks (N = n_x = 10, w ~ N(0, I), x ~ U(-1/2, 1/2), fresh at every step), loss and search for eta.
    For a run in minutes, Adam's rate is 3e-3, falling along a cosine, and a layer does not start near zero.
    """

    summary: ClassVar[str] = "trained linear attention against GD and GD++, in depth"

    steps: Steps = 1500
    d: int = 10
    n: int = 10
    depths: tuple[int, ...] = (1, 2, 3)  # trained
    constructed: tuple[int, ...] = (1, 2, 3, 4, 5)  # GD and GD++ alone
    sharing: tuple[Literal["recurrent", "own weights"], ...] = ("recurrent", "own weights")
    batch: int = 512
    rate: float = 3e-3
    test: int = 5000
    search: int = 4000

    @property
    def trained(self) -> list[tuple[str, int]]:
        """One layer is the same with shared weights and without, and is trained once."""
        found = [(kind, depth) for kind in self.sharing for depth in self.depths]
        return [(kind, depth) for kind, depth in found if depth > 1 or kind == self.sharing[0]]

    @property
    def trainings(self) -> int:
        return len(self.trained)

    @property
    def problem(self) -> Linear:
        return Linear(self.d, self.n)

    def carry_out(self, results: Results, place: Workplace) -> None:
        rivals = self._rivals(results)
        test = draw_for(self.problem, self.test, generators(self.seeds, 2))
        rows: list[tuple[str, ...]] = []
        before: Transformer | None = None
        single: Transformer | None = None
        for kind, depth in self.trained:
            recurrent = kind == "recurrent"
            if kind != self.sharing[0] and depth == min(d for d in self.depths if d > 1):
                before = single
            model = Transformer(self.d + 1, depth, generators(self.seeds, 0), recurrent=recurrent).to(place.device)
            if before is not None:
                continue_from(model, before)
            training = self._train(model, depth, test, place.of(f"{kind}-{depth}".replace(" ", "-")))
            model = model.cpu().requires_grad_(False)
            before = model
            single = model if depth == 1 else single
            label = "one layer" if depth == 1 else f"{depth} layers, {kind}"
            results.notes[f"steps, {label}"] = training.steps
            # A seed that diverged has no number to average: it is left out, and the check of arrival says so.
            sound = [i for i, loss in enumerate(training.log[-1]["loss"]) if math.isfinite(loss)]
            few = self.model_copy(update={"seeds": tuple(self.seeds[i] for i in sound)})
            if sound:
                kept = {step: [losses[i] for i in sound] for step, losses in training.curve("loss").items()}
                results.over_x(label, "loss in training", kept, few.seeds, "step", "training")
                some = TaskBatch(*(part[sound] for part in (test.x, test.y, test.query, test.target)))
                rows += few._compare(results, label, kind, depth, chosen(model, sound), rivals[depth], some)
            self._arrived(results, label, training, model, rivals[depth], test)
        columns = ("layers", "against", *MEASURES)
        results.table("Trained layers, mean over seeds [95 % interval]", columns, rows)

    def conclude(self, results: Results) -> None:
        results.figure("loss in training", "Loss in training", log_y=True)
        reads = "The claim is borne out where a trained layer's loss is that of the algorithm, or less."
        results.figure("loss", "Loss against depth", reads=reads)
        nearer = "Of two algorithms the trained layers are nearer to the"
        results.figure(
            "sensitivity cosine", "Cosine of the sensitivities", reads=f"{nearer} higher one; 1 is the same."
        )
        reads = "The claim is borne out where the line does not rise: weights between the two are as good as either."
        results.figure("loss between", "The loss between trained weights (0) and constructed ones (1)", reads=reads)
        lower = f"{nearer} lower one; 0 is the same."
        results.figure("prediction difference", "Difference of the predictions", reads=lower)
        results.figure("sensitivity distance", "Distance of the sensitivities", reads=lower)

    def _rivals(self, results: Results) -> dict[int, dict[str, Transformer]]:
        """GD and GD++ for every depth; their numbers are searched on training draws, their losses are on
        test draws.
        """
        (search,) = (self.problem.draw(self.search, g) for g in generators([0], stream=3))
        (test,) = (repeat(self.problem.draw(self.test, g), 1) for g in generators([0], stream=4))
        found: dict[int, dict[str, Transformer]] = {}
        rows = []
        for depth in sorted({*self.constructed, *self.depths}):
            eta = best_eta(search, depth)
            found[depth] = {GD: gd_transformer([eta], depth, self.d, self.n)}
            note = {GD: f"eta {eta:.1f}"}
            if depth > 1:  # one layer's prediction is made before the inputs are curved
                plus, gamma = best_eta_gamma(search, depth, eta)
                found[depth][PLUS] = gd_transformer([plus], depth, self.d, self.n, [gamma])
                note[PLUS] = f"eta {plus:.1f}, gamma {gamma:.3f}"
            for name, model in found[depth].items():
                loss = float(half_mse(model.predict, test))
                results.add(name, "loss", loss, panel="depth", x_name="layers", x=depth, n=self.test)
                rows.append((str(depth), name, f"{loss:.4f}", note[name]))
        results.table("Gradient descent by construction", ("layers", "learner", "loss", "found by search"), rows)
        if 2 in found:
            gd, plus_plus = (float(half_mse(found[2][name].predict, test)) for name in (GD, PLUS))
            results.check("two steps: GD++ beats GD", f"{plus_plus:.4f} against {gd:.4f}", plus_plus < gd)
        return found

    def _train(self, model: Transformer, depth: int, test: TaskBatch, place: Workplace) -> Training:
        shown_tasks = TaskBatch(*(part[:, :1000] for part in (test.x, test.y, test.query, test.target))).to(
            place.device
        )

        def draw(step: int, tasks: int) -> tuple[Tensor, ...]:
            batch = draw_for(self.problem, tasks, generators(self.seeds, 100 + depth, place.device, step))
            return batch.tokens, batch.target

        def loss(tokens: Tensor, target: Tensor) -> Tensor:
            return 0.5 * (model.predict(tokens) - target).square().mean(-1)

        @torch.no_grad()
        def watch() -> dict[str, Tensor]:
            return {"loss": half_mse(model.predict, shown_tasks)}

        rate = self.rate if depth == 1 else 4 * self.rate / depth
        warmup = min(self.steps // 20, 200 * (depth > 1))
        # A deeper one has more to learn, and each of its steps takes longer.
        average = sum(depth for _, depth in self.trained) / len(self.trained)
        minutes = None if self.minutes is None else self.minutes * depth / average
        schedule = Schedule(self.steps, rate, 1.0, rate / 60, warmup, minutes, rest=REST)
        return train(model, drawn_ahead(self.batch, draw), loss, schedule, place, watch, max(1, self.steps // 80))

    def _arrived(
        self,
        results: Results,
        label: str,
        training: Training,
        model: Transformer,
        rivals: dict[str, Transformer],
        test: TaskBatch,
    ) -> None:
        """Nothing is said of a model that is still on its way: at rest, and no seed above GD's own loss."""
        with torch.no_grad():
            mine = half_mse(model.predict, test)
            gd = half_mse(copies_of(rivals[GD], len(self.seeds)).predict, test)
        rested, low = arrived(training.curve("loss")), bool((mine <= 1.03 * gd).all())
        state = "at rest" if rested else "the loss still falls"
        sound = mine[mine.isfinite()]
        worst = f"{float(sound.max()):.4f}" if len(sound) else "none"
        found = f"{state}; worst seed {worst}, GD {float(gd.mean()):.4f}"
        if len(sound) < len(mine):
            found += f"; {len(mine) - len(sound)} of {len(mine)} seeds diverged and are left out"
        results.check(
            f"{label}: has arrived (at rest, every seed within 3 % of GD's loss or below)", found, rested and low
        )

    def _compare(
        self,
        results: Results,
        label: str,
        kind: str,
        depth: int,
        model: Transformer,
        rivals: dict[str, Transformer],
        test: TaskBatch,
    ) -> list[tuple[str, ...]]:
        rows, cosines = [], {}
        for name, rival in rivals.items():
            found = alignment(model.predict, copies_of(rival, len(self.seeds)).predict, test)
            cells = []
            for measure in MEASURES:
                series = f"trained, {kind}" if measure == "loss" else f"{kind} against {name}"
                if measure == "loss" and name != GD:
                    cells.append("")
                    continue
                where = {"panel": "depth", "x_name": "layers", "x": depth}
                cells.append(shown(*results.over_seeds(series, measure, found[measure], self.seeds, **where)))
            rows.append((label, name, *cells))
            cosines[name] = found["sensitivity cosine"]
            if depth == 1:
                apart = (found["loss"].mean() / found["reference loss"].mean() - 1).item()
                cosine = cosines[GD].mean().item()
                results.check(
                    "one layer: the trained loss is within 3 % of GD's", f"{100 * apart:+.2f} %", abs(apart) <= 0.03
                )
                results.check("one layer: sensitivity cosine >= 0.99", f"{cosine:.4f}", cosine >= 0.99)
            elif name == PLUS:
                results.check(
                    f"{label}: GD++ and not GD: the cosine with GD++ is the larger in every seed",
                    f"{shown_mean(cosines[PLUS])} against {shown_mean(cosines[GD])}",
                    bool((cosines[PLUS] > cosines[GD]).all()),
                )
                ours, theirs = found["loss"], found["reference loss"]
                results.check(
                    f"{label}: the trained loss is at most GD++'s and 3 %",
                    f"{shown_mean(ours)} against {float(theirs.mean()):.4f}",
                    float(ours.mean()) <= 1.03 * float(theirs.mean()),
                )
        if depth == 1 or kind == "recurrent":
            other = GD if depth == 1 else PLUS
            half_way = self._interpolated(results, label, model, rivals[other], test)
            rows.append((label, f"half-way to {other}", half_way, "", "", ""))
        return rows

    def _interpolated(
        self, results: Results, label: str, model: Transformer, other: Transformer, test: TaskBatch
    ) -> str:
        """The loss of the layers whose K^T Q and P V lie between the trained layer's and the constructed one's.

        A layer is the same when K^T Q is divided by beta and P V multiplied by it; beta is chosen so that
        the trained K^T Q has GD's size, the mean of its diagonal, the target's entry left out.
        """
        half_way = ""
        with torch.no_grad():
            (keyed, mixed), (gd_keyed, gd_mixed) = model.products(0), other.products(0)
            beta = keyed.diagonal(dim1=-2, dim2=-1)[..., :-1].mean(-1)[..., None, None]
            between = copies_of(other, len(self.seeds))
            identity = torch.eye(self.d + 1).expand_as(keyed)
            for place in PLACES:
                parts = (
                    identity,
                    keyed / beta * (1 - place) + gd_keyed * place,
                    mixed * beta * (1 - place) + gd_mixed * place,
                    identity,
                )
                weights = (between.key, between.query, between.output, between.value)
                for weight, value in zip(weights, parts, strict=True):
                    weight.copy_(value.unsqueeze(1))
                loss = half_mse(between.predict, test)
                where = {"panel": "between", "x_name": "trained 0, constructed 1", "x": place}
                found = results.over_seeds(label, "loss between", loss, self.seeds, **where)
                if place == 0.5:
                    half_way = shown(*found)
        return half_way


def continue_from(model: Transformer, before: Transformer) -> None:
    """A deeper model begins near a shallower one: a layer that is used more often takes shorter steps, so that all of
    them lead as far; a layer that is new is the last one again, and adds nothing yet.
    """
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), before.parameters(), strict=True):
            layers = mine.shape[1]
            known = theirs[:, :layers]
            new = theirs[:, -1:].expand(-1, layers - known.shape[1], *theirs.shape[2:])
            mine.copy_(torch.cat([known, new], 1))
        if model.recurrent:
            model.output.mul_(before.depth / model.depth)
        else:
            model.output[:, before.depth :] = 0
