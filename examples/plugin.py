"""A learner and a metric of your own: dualscope run --plugin examples/plugin.py --learner gd --learner gd-twice"""

from dualscope import LEARNERS, Learned, Learner
from dualscope.metrics import simple_metric


@LEARNERS.register("gd-twice")
class GdTwice(Learner):
    """GD's change, made twice as large."""

    needs_lr = True

    def learn(self, bench, lr, options):
        delta = bench.learned("gd", lr).delta.scaled(2.0)
        with delta.applied(bench.model):
            return Learned(bench.model.read(bench.lesson, want=bench.read_want), delta)


@simple_metric("certainty", "max_k p_k", "the largest label probability")
def certainty(case):
    return case.trace.label_logprobs.exp().amax(-1)
