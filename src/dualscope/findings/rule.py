"""The rule of the verdict, in words: printed beside every answer that it gives."""

from dualscope.findings.answer import ALPHA, EXPLAINED, PRIMARY, SEEDS, SMALL

RULE = f"""\
The question is the strong, per-layer correspondence: does a learner change the attention outputs as the \
demonstrations in the context do? It is asked of every task and every hypothesis by itself, on the trained model.
1. The measure is {PRIMARY}: the cosine of the two changes of the attention output, mean over layers and queries. \
A learner that changes predictions only, or acts at one layer, has no such cosine: it is asked for {EXPLAINED}, the \
share of what the context does to the label probabilities that it does too, against the same controls as far as they \
have a share (not mismatched queries, not likeness to a null, not beyond dilution).
2. Not testable: unless in-context learning and the learner each beat zero-shot in accuracy, with an interval \
that excludes 0, there is no learning to compare; nor where {EXPLAINED} has no value (the context changes no more than \
another draw of demonstrations does). (Accuracy is against what the demonstrations teach: where their \
labels are flipped, against the flipped labels; where they are random, against the right ones.)
3. Controls that decide, each of the same learner: the untrained model (weights drawn anew); a random update of the \
same size; mismatched queries (one query's ICL change against another's learned change); the learner taught random \
labels, and taught another task. And what is like ICL with nothing to learn from: the query moved to ICL's positions \
(position), its attention diluted as ICL dilutes it (dilution), contexts that teach nothing; the learner's likeness to \
such a context in place of ICL; and what is left of the likeness when the direction that dilution moves along is taken \
out of both changes (beyond dilution), which has to be above 0. A context, random labels or another task that beats \
zero-shot here teaches something: it is marked, and does not decide. Differences are paired by seed and query.
4. Above the controls: against every deciding control that was measured, the difference is above 0 with an interval \
that excludes 0 and a p-value below {ALPHA:g} after Holm's correction over tasks; the untrained model and at least one \
other control must have been measured, over at least {SEEDS} seeds. By {EXPLAINED} the untrained model decides where \
it has a value and need not be measured: its context often changes too little to be explained.
5. Not above: against some deciding control, the whole interval of the difference lies below {SMALL:g}.
6. Inconclusive: anything else; how many seeds would settle it is said.
Intervals are 95 % intervals over seeds: Student's, with one degree of freedom less than there are seeds, and what the \
queries add to the variance of the mean; one of a share or a cosine ends where these do. Their coverage and the rate \
of false answers are simulated.\
"""
