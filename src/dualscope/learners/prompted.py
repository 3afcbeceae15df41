"""Zero-shot, from which every change is measured, and in-context learning, with which it is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.models.reading.parity import assure
from dualscope.models.reading.prefix import encoded_together

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("zero-shot", "zsl")
class ZeroShot(Learner[Options]):
    """BOS and the query: where every change is measured from."""

    title = "no demonstrations"
    colour = "@grey"
    role = "baseline"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return Learned(bench.model.read(bench.lesson, want=bench.read_want))


@LEARNERS.register("in-context", "icl")
class InContext(Learner[Options]):
    """BOS, every demonstration and a separator, then the query."""

    title = "in-context learning"
    colour = "@green"
    role = "reference"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return bench.after(bench.prefix, bench.context_want)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: Options) -> LearnedDraws | None:
        """Contexts of equal length are encoded side by side, and the queries read after all of them."""
        model, contexts = benches[0].model, [bench.lesson.context for bench in benches]
        if len({len(context) for context in contexts}) > 1 or not model.takes_draws:
            return None
        for bench in benches:
            assure(model, bench.lesson)
        prefixes = encoded_together(model, contexts)
        return LearnedDraws(tuple(model.read_draws(benches[0].lesson, len(benches), prefixes)))
