"""Changes of attention that the dual model suggests (Ren & Liu), in softmax transformers, as training goes on."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from dualscope.core.errors import InputError
from dualscope.regression.emergence import APPEARS, LEVEL, when_equal
from dualscope.regression.experiment import EXPERIMENTS, PromptExperiment, Seeds
from dualscope.regression.problems import LinearFunctions
from dualscope.regression.results import Results, shown, shown_mean
from dualscope.regression.training import ALL, LONGEST, Workplace

NORMAL = "normal"
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "regularized": {
        "alpha = 0.1": {"name": "regularized", "alpha": 0.1},
        "alpha = 0.5": {"name": "regularized", "alpha": 0.5},
        "alpha = -0.5": {"name": "regularized", "alpha": -0.5},
        "alpha = 0.5, exact dual": {"name": "regularized", "alpha": 0.5, "form": "dual"},
    },
    "augmented": {
        "g1 (values)": {"name": "augmented", "parts": "g1"},
        "g2 (keys)": {"name": "augmented", "parts": "g2"},
        "g1 and g2": {"name": "augmented", "parts": "both"},
    },
    "negative": {
        f"k = {k}, beta = {beta}": {"name": "negative", "k": k, "beta": beta} for k in (1, 3) for beta in (0.1, 0.5)
    },
    "momentum": {"eta = 0.5": {"name": "momentum", "eta": 0.5}},
}


def arms_of(kinds: Mapping[str, Mapping[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Normal attention and every changed one, by the names that rows have for them."""
    changed = {f"{kind}, {options}": arm for kind, arms in kinds.items() for options, arm in arms.items()}
    return {NORMAL: {"name": "softmax"}} | changed


def check_arms(asked: Iterable[str], known: Iterable[str]) -> None:
    for name in asked:
        if name not in known:
            raise InputError(f"arms: there is none named '{name}'; known: {'; '.join(known)}")


ARMS = arms_of(KINDS)


@EXPERIMENTS.register("variants")
class Variants(PromptExperiment):
    """GPT-2 blocks with each kind of attention, trained on prompts of linear functions: the same prompts, the same
    start, the same number of steps.

    Compared when all have learned in context: after the same number of steps, and where each first has the same loss.
    No order is claimed: the differences from normal attention are paired by seed, and their intervals decide.
    """

    summary: ClassVar[str] = "regularized, augmented, negative and momentum attention at equal steps and equal loss"

    seeds: Seeds = tuple(range(8))
    arms: tuple[str, ...] = tuple(ARMS)
    points: int = 16
    layers: int = 3
    width: int = 48
    curriculum: int = 300

    @property
    def trainings(self) -> int:
        return len(self.arms)

    def carry_out(self, results: Results, place: Workplace) -> None:
        check_arms(self.arms, ARMS)
        for number, name in enumerate(self.arms):
            self.trained(results, LinearFunctions(self.d), place.of(f"arm-{number}"), name, attention=ARMS[name])

    def conclude(self, results: Results) -> None:
        names = [name for name in ARMS if results.curves(name, ALL)]
        place = {name: number for number, name in enumerate(ARMS)}
        # Parts may have come in any order; a legend has one.
        results.rows.sort(key=lambda row: place.get(row["series"], len(place)))
        curves = {name: (results.curves(name, ALL), results.curves(name, LONGEST)) for name in names}
        appeared = {name: results.values(name, APPEARS) for name in names}
        late = [name for name in names if len(appeared[name]) < len(self.seeds)]
        results.check(
            f"in-context learning appears in every arm and seed (error with {self.points - 1} examples <= {LEVEL})",
            f"not in {', '.join(late)}" if late else f"by step {max(max(v.values()) for v in appeared.values()):g}",
            not late,
        )
        # Where time ended some trainings earlier than others, the last step that all of them have.
        watched = [set(curve) for name in names for curve in curves[name][0].values()]
        common = max(set.intersection(*watched))
        # For every seed, the loss that all arms have reached: the largest of their last ones.
        last = {name: {seed: list(curve.values())[-1] for seed, curve in curves[name][0].items()} for name in names}
        rows = []
        for name in names:
            cells = []
            for seed in self.seeds:
                level = max(last[other][seed] for other in names)
                step, error = when_equal(curves[name][0][seed], curves[name][1][seed], level)
                results.add(name, "step at equal loss", step, seed=seed, panel="equal loss")
                results.add(name, "error at equal loss", error, seed=seed, panel="equal loss")
                results.add(name, "error at equal steps", curves[name][1][seed][common], seed=seed, panel="equal steps")
            for metric in ("error at equal steps", "error at equal loss", "step at equal loss"):
                mine, plain = results.values(name, metric), results.values(NORMAL, metric)
                found = results.summed_up(name, metric)
                cells.append(shown(*found))
                if plain and name != NORMAL:
                    change = [mine[seed] - plain[seed] for seed in self.seeds]
                    paired = results.over_seeds(name, f"{metric}, minus normal", change, self.seeds)
                    cells.append(shown(*paired))
                else:
                    cells.append("")
            steps = list(appeared[name].values())
            rows.append((name, shown_mean(steps) if steps else "never", *cells))
        about = "mean over seeds [95 % interval]"
        columns: tuple[str, ...] = ("attention", "appears at step", "error", "minus normal, paired")
        results.table(f"At equal steps, {common:g} of them: {about}", columns, [row[:4] for row in rows])
        columns = ("attention", "error", "minus normal, paired", "step", "minus normal, paired")
        results.table(f"At equal loss: {about}", columns, [(row[0], *row[4:]) for row in rows])
        results.figure(LONGEST, "Error in training, longest prompt", marks=APPEARS, log_y=True)
        results.figure(ALL, "Error in training, all lengths", log_y=True)
        for metric in ("error at equal steps", "error at equal loss", "step at equal loss"):
            title = metric.capitalize()
            reads = "All kinds of attention were trained from the same start on the same prompts; less is better."
            results.figure(metric, title, reads=reads)
            reads = "Left of zero is better than normal attention; an interval that holds zero found no difference."
            results.figure(f"{metric}, minus normal", f"{title}, minus normal attention's, paired by seed", reads=reads)
