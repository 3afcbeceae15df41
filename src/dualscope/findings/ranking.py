"""Which hypothesis explains in-context learning best: a ranking of each task, in numbers and in words. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dualscope.core.rows import SummaryRow
from dualscope.core.spec import IN_CONTEXT, EpisodeSpec, LearnerSpec
from dualscope.core.words import CONTROL_ROLES, Control
from dualscope.findings.answer import described, each_text
from dualscope.findings.summary import ALL_TASKS

NULLS: tuple[Control, ...] = tuple(name for name, role in CONTROL_ROLES.items() if role == "null")
BESIDE = (
    *("explained_mismatched", "explained_next_token", "explained_raw", "agreement", "agreement_kappa"),
    *("topk_overlap", "accuracy", "sim_aou", "sim_aou_above"),
)


@dataclass(frozen=True)
class Standing:
    """A learner's explained share on a task, what else is known of it there, and its own controls' shares."""

    learning: LearnerSpec
    label: str
    explained: SummaryRow
    beside: dict[str, SummaryRow] = field(default_factory=dict)
    controls: dict[Control, SummaryRow] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return float(self.explained["value"])

    @property
    def each(self) -> tuple[float, ...]:
        """Every seed's own share; NaN where there is nothing to explain in it."""
        return self.explained["each"]

    @property
    def empty_seeds(self) -> int:
        """Those in which there is nothing to explain: they weigh little in the sums that the share is a ratio of."""
        return sum(not math.isfinite(value) for value in self.each)

    @property
    def mismatched(self) -> SummaryRow | None:
        """What its answers explain where they are those to other queries."""
        found = self.beside.get("explained_mismatched")
        return found if found is not None and math.isfinite(found["value"]) else None

    @property
    def strongest(self) -> tuple[Control, SummaryRow] | None:
        """The control that explains most: what the learner has without being taught the task."""
        found = [(name, row) for name, row in self.controls.items() if math.isfinite(row["value"])]
        return max(found, key=lambda pair: float(pair[1]["value"]), default=None)


@dataclass(frozen=True)
class Ranking:
    """The hypotheses of one task, best first; and the ceilings, which may look at in-context learning itself."""

    task: str
    hypotheses: tuple[Standing, ...]
    ceilings: tuple[Standing, ...]
    empty: tuple[str, ...] = ()
    """Learners whose share is not defined: there is nothing to explain, or they left no predictions."""

    @property
    def again(self) -> Standing | None:
        """In-context learning from other demonstrations: as much as anything can be expected to explain."""
        return next((c for c in self.ceilings if c.learning == IN_CONTEXT.under("redraw")), None)

    def words(self) -> list[str]:
        """Which explains most, how much is left, and what the controls take away."""
        if not self.hypotheses and self.ceilings:
            return [f"{self.task}: nothing can be said of {', '.join(self.empty)}: no finite predictions are left."]
        if not self.hypotheses:
            return [
                f"{self.task}: nothing to explain: beyond a temperature and biases the context hardly changes the "
                "predictions."
            ]
        best = self.hypotheses[0]
        said = [f"{self.task}: {best.label} explains most, {_share(best.explained)}{_each(best)}; {_left(best.value)}."]
        if best.value <= 0:
            said = [
                f"{self.task}: no hypothesis explains anything; the nearest is {best.label}, {_share(best.explained)}"
                f"{_each(best)}."
            ]
        elif best.strongest is not None:
            name, row = best.strongest
            if row["value"] >= best.value:
                said.append(f"Under {name} it explains as much, {_share(row)}: what it explains is not the task.")
            elif row["value"] > 0:
                said.append(f"Of that it keeps {_share(row)} under {name}: that much is not the task.")
            else:
                said.append(f"Its controls take all of it away: under {name} it explains {_share(row)}.")
        if self.again is not None:
            said.append(f"In-context learning from other demonstrations explains {_share(self.again.explained)}.")
        fitted = [c for c in self.ceilings if c is not self.again]
        if fitted:
            top = max(fitted, key=lambda c: c.value)
            word = "more than" if top.value > best.value else "no more than"
            said.append(
                f"Fitted on ICL's own traces, {top.label} explains {_share(top.explained)}, {word} the best hypothesis."
            )
        if best.mismatched is not None:
            said.append(f"Its answers to other queries explain {_share(best.mismatched)}.")
        if best.empty_seeds:
            said.append(
                f"In {best.empty_seeds} of {len(best.each)} seeds there is nothing to explain: beyond a temperature "
                "and biases the context hardly changes the predictions. The share is of the sums over all seeds."
            )
        return said

    def in_short(self) -> str:
        """The best hypothesis, and the most that one of its own controls has."""
        best = self.hypotheses[0]
        if best.value <= 0:
            return f"{self.task}, no hypothesis ({best.label} has {_share(best.explained)})"
        control = "" if best.strongest is None else f", under {best.strongest[0]} {_share(best.strongest[1])}"
        return f"{self.task}, {best.label} {_share(best.explained)}{_each(best)}{control} ({_left(best.value)})"


def rankings(rows: Iterable[SummaryRow]) -> list[Ranking]:
    """Of every task, from the trained model's summary rows of one model and setting."""
    by_task: dict[str, list[SummaryRow]] = {}
    for row in rows:
        if row["variant"] == "trained":
            by_task.setdefault(str(row["task"]), []).append(row)
    found = [_ranking(task, own) for task, own in by_task.items()]
    return [ranking for ranking in found if ranking is not None]


def sentences(rows: Iterable[SummaryRow]) -> list[str]:
    """For every model and setting in which hypotheses stand side by side: which one explains most of each task."""
    settings: dict[EpisodeSpec, list[SummaryRow]] = {}
    for row in rows:
        if row["role"] != "baseline" and row["task"] != ALL_TASKS:
            settings.setdefault(EpisodeSpec.of_row(row).setting, []).append(row)
    found = []
    for setting, own in settings.items():
        ranked = [ranking for ranking in rankings(own) if len(ranking.hypotheses) > 1]
        if ranked:
            best = "; ".join(ranking.in_short() for ranking in ranked)
            found.append(
                f"What explains most of in-context learning in {setting.model.name}, {setting.shots} shots: {best}."
            )
    return found


def _ranking(task: str, rows: Sequence[SummaryRow]) -> Ranking | None:
    shares: dict[LearnerSpec, SummaryRow] = {}
    beside: dict[LearnerSpec, dict[str, SummaryRow]] = {}
    roles: dict[LearnerSpec, str] = {}
    for row in rows:
        learning = LearnerSpec.of_row(row)
        roles[learning] = str(row["role"])
        if row["metric"] == "explained" and row["reference"] == IN_CONTEXT.label:
            shares[learning] = row
        elif row["metric"] in BESIDE and row["reference"] in (IN_CONTEXT.label, None):
            beside.setdefault(learning, {})[str(row["metric"])] = row
    if not shares:
        return None

    labels = Counter(learning.label for learning in shares)

    def standing(learning: LearnerSpec) -> Standing:
        controls = {name: shares[learning.under(name)] for name in NULLS if learning.under(name) in shares}
        rate = f" lr={learning.lr:g}" if labels[learning.label] > 1 else ""  # it was run at several
        return Standing(learning, learning.label + rate, shares[learning], beside.get(learning, {}), controls)

    defined = {who for who, row in shares.items() if math.isfinite(row["value"])}
    plain = [who for who in shares if who.control is None and roles[who] == "hypothesis"]
    tops = [
        who for who in shares if roles[who] == "ceiling" and (who.control is None or who == IN_CONTEXT.under("redraw"))
    ]
    return Ranking(
        task,
        tuple(sorted((standing(w) for w in plain if w in defined), key=lambda s: -s.value)),
        tuple(standing(who) for who in tops if who in defined and described(who.name).ranked),
        tuple(who.label for who in plain if who not in defined),
    )


def _share(row: SummaryRow) -> str:
    """A share as people read it, with its interval where it has one."""
    text = f"{row['value']:.2f}"
    low, high = row.get("low"), row.get("high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return text
    return f"{text} [{low:.2f}, {high:.2f}]"


def _each(standing: Standing) -> str:
    """Every seed's value, where there are several."""
    return f" (each seed: {each_text(standing.each)})" if len(standing.each) > 1 else ""


def _left(value: float) -> str:
    return f"{max(0.0, 1 - value):.0%} of the context's effect on the predictions is left unexplained"
