"""What the metrics of responses are. They are made from the draws of an intervention, not from one case."""

from __future__ import annotations

from collections.abc import Iterable

from dualscope.core.statistics import COSINE, SHARE, SIZE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import family
from dualscope.metrics.values import Values


def _from_draws(_case: Case, _names: frozenset[str]) -> Iterable[Values]:
    return ()


_define = family(_from_draws, lambda _case: False, COSINE)
_define(
    "learned_share",
    "K/(K-1) sum |D_k|^2 / sum |a_k - z|^2, a the label log-probabilities on draw k, D_k = a_k less their mean",
    "share of the change of the answers that depends on which label stands where (draws of `relabel`)",
    default=False,
    within=SHARE,
)
_define(
    "learned_share_aou",
    "the same of attn_out",
    "the same of the attention outputs, by layer",
    default=False,
    within=SHARE,
)
_define(
    "response_answers",
    "sum <D_icl, D> / sqrt(sum |D_icl|^2 sum |D|^2), D less each draw's mean over queries",
    "when the labels change, do the answers move as ICL's (or a plant's) do? The function that was learned",
    default=False,
)
_define(
    "response_answers_given",
    "the same given copying",
    "the same once what is copied by place is taken out",
    default=False,
)
_define("response_bias", "the same of the mean over queries", "the prior that was learned", default=False)
_define(
    "response_aou",
    "response_answers of attn_out, layers weighted by ICL's learned_share_aou",
    "when the labels change, do the attention outputs move as ICL's do?",
    default=False,
)
_define(
    "response_aou_given", "the same given copying", "the same once what is copied by place is taken out", default=False
)
_define(
    "response_am",
    "the same of attn_scores",
    "when the labels change, do attention maps move as ICL's do?",
    default=False,
)
_define(
    "response_geometry",
    "max over layers m of corr(G_icl,l[k, k'], G_m[k, k']), k < k', G[k, k'] = sum over queries <D_k, D_k'>",
    "are draws that are close in a layer of ICL close in some layer of the learner?",
    default=False,
)
_define(
    "response_snr", "rms D / (eps rms attn_out)", "how far a response lies above rounding", default=False, within=SIZE
)
_define(
    "copying",
    "mean over pairs of sets of r(P_i, P_j)",
    "how alike ICL copies labels behind other inputs",
    default=False,
)
_define(
    "influence",
    "mean |change of the right label's log-odds when one demonstration's label is flipped|",
    "what one demonstration teaches (draws of `flip-one`)",
    default=False,
    within=SIZE,
    needs_gold=True,
)
_define(
    "response_influence",
    "correlation of both influence matrices, less the mean over queries",
    "did each demonstration teach the same as in ICL?",
    default=False,
    needs_gold=True,
)
