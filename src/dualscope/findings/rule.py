"""The rule of the verdict, in words: printed beside every answer that it gives."""

from dualscope.core.shares import LEAST
from dualscope.findings.answer import ALPHA, EXPLAINED, PRIMARY, SEEDS, SMALL

RULE = f"""\
The question is the likeness of the whole change: is a learner's change of the attention outputs more like the \
context's than its controls' are? It is asked of every task and every hypothesis by itself, on the trained model. Most \
of what a context does is not learned from it, so a likeness explains nothing: it can be refused, and a yes is a \
likeness that nothing else here has.
1. The measure is {PRIMARY}: the cosine of the two changes of the attention output, mean over layers and queries. \
A learner that changes predictions only, or acts at one layer, has no such cosine: it is asked for {EXPLAINED}, the \
share of what the context does to the label probabilities that it does too, beyond a temperature and class biases, \
against the same controls as far as they have a share (not mismatched queries, not likeness to a null, not beyond \
dilution).
2. Not testable: unless in-context learning and the learner each beat both zero-shot and chance in accuracy, with \
intervals that exclude them, there is no learning to compare; nor where {EXPLAINED} has no value (after temperature \
and biases zero-shot is within {LEAST:g} nats of the context). (Accuracy is against what the demonstrations teach: \
where their labels are flipped, against the flipped labels; where they are random, against the right ones.)
3. Controls that decide, each of the same learner: the untrained model (weights drawn anew); a random update of the \
same size; mismatched queries (one query's ICL change against another's learned change); the learner taught random \
labels, and taught another task. And what is like ICL with nothing to learn from: the query moved to ICL's positions \
(position), its attention diluted as ICL dilutes it (dilution), contexts that teach nothing; the learner's likeness to \
such a context in place of ICL; and what is left of the likeness when the direction that dilution moves along is taken \
out of both changes (beyond dilution), which has to be above 0. A context, random labels or another task that beats \
both zero-shot and chance here (with p-values that are corrected as in 4) teaches something: it is marked, and does \
not decide. Differences are paired by seed and query.
4. Above the controls: against every deciding control that was measured, the difference is above 0 with a p-value \
below {ALPHA:g} after it was multiplied by the number of learners (rates and tasks) that can be tested, and in so many \
seeds that most draws must show it (a sign test below {ALPHA:g}: 5 of 5, 7 of 8, 9 of 10); the untrained model and at \
least one other control must have been measured, over at least {SEEDS} seeds. By {EXPLAINED} the untrained model \
decides where it has a value and need not be measured: its context often changes too little to be explained.
5. Not above: against some deciding control, the difference is below {SMALL:g} with a p-value below {ALPHA:g} after it \
was multiplied by the number of controls and by that of 4, and in so many seeds that most draws must show it.
6. Inconclusive: anything else; how many seeds would settle it is said.
Intervals are 95 % intervals over seeds and queries: each part with Student's quantile of its own degrees of freedom; \
one of a share or a cosine ends where these do. Their coverage and the rate of false answers are simulated, also for \
skewed seeds and many learners.\
"""
