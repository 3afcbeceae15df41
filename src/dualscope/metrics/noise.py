"""Signal to noise: is a change larger than what rounding alone makes of it?

A few queries are read again with all sums in another order (`Bench.reread`), zero-shot and the learner alike. The
noise of a change is how far the two changes are apart, so what rounding does to both sides alike does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT
from dualscope.core.statistics import SIZE, SNR_THRESHOLD
from dualscope.learners.learner import Reread
from dualscope.metrics.attention_map import change_undefined, seen_scores, visible
from dualscope.metrics.attention_output import across, centered, of_heads, outputs, without
from dualscope.metrics.case import Case, Logged, PerQuery, Values
from dualscope.metrics.cosine import layer_slices, unit
from dualscope.metrics.metric import Measure, metric
from dualscope.models.reading.trace import Trace


@dataclass(frozen=True)
class Sizes:
    """|change| and |noise| of every query and layer, NaN for queries that were read only once: [queries, layers]."""

    signal: Tensor
    noise: Tensor

    def ratios(self) -> Tensor:
        """Of each layer, as its row has it: [layers]."""
        return self.signal.nansum(0) / torch.where(self.signal.isnan(), 0, self.noise).nansum(0)


def sizes(case: Case, reread: Reread) -> dict[str, Sizes]:
    """By metric: of the outputs' change, of the parts of it that are compared by themselves, and of the scores'."""
    row = {name: index for index, name in enumerate(case.trace.query_ids)}
    rows = torch.tensor([row[name] for name in reread.trace.query_ids], dtype=torch.long)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for at in layer_slices(case.trace.attn_scores):
        for name, signal, noise in (*_outputs(case, reread, rows, at), _scores(case, reread, rows, at)):
            found.setdefault(name, []).append((_norm(signal), _norm(noise)))

    def among_all(chunks: list[Tensor]) -> Tensor:
        values = torch.cat(chunks, 1)
        whole = values.new_full((len(case.trace), values.shape[1]), torch.nan)
        whole[rows.to(whole.device)] = values
        return whole

    return {
        name: Sizes(among_all([s for s, _ in chunks]), among_all([n for _, n in chunks]))
        for name, chunks in found.items()
    }


Found = tuple[str, Tensor, Tensor]  # metric, change and noise [queries read twice, layers, ...]


def _outputs(case: Case, reread: Reread, rows: Tensor, at: slice) -> Iterator[Found]:
    z, g = (outputs(trace, at) for trace in (case.zero_shot, case.trace))
    rows = rows.to(z.device)
    once = (g - z)[rows]
    twice = outputs(reread.trace, at) - outputs(reread.zero_shot, at)
    noise = once - twice.to(once.device)
    yield "snr", once, noise
    # Among a few queries, one's own share of the mean has to be made up for.
    few = len(rows) / max(1, len(rows) - 1)
    yield "snr_centered", centered(g - z)[rows], centered(noise) * few**0.5
    bias = None if case.output_bias is None else case.output_bias[at]
    along = unit(of_heads(z[rows], bias))
    yield "snr_orthogonal", across(once, along), without(noise, along)


def _scores(case: Case, reread: Reread, rows: Tensor, at: slice) -> Found:
    z, g = _picked(case.zero_shot, rows), _picked(case.trace, rows)
    own = visible(z, at)
    once = seen_scores(g, own, at) - seen_scores(z, own, at)
    tokens = reread.trace.attn_scores.shape[-1]  # a few queries may all be shorter than the longest of all
    own = own[..., -tokens:]
    twice = seen_scores(reread.trace, own, at) - seen_scores(reread.zero_shot, own, at)
    return "snr_scores", once, once[..., -tokens:] - twice.to(once.device)


def _picked(trace: Trace, rows: Tensor) -> Trace:
    return trace.map(lambda tensor: tensor[rows.to(tensor.device)])


def _norm(change: Tensor) -> Tensor:
    """Over everything but queries and layers: [queries, layers]."""
    found: Tensor = torch.linalg.vector_norm(change.flatten(2), dim=-1)
    return found


def _sizes(case: Case) -> dict[str, Sizes]:
    assert case.reread is not None
    found = sizes(case, case.reread)
    found["snr_scores"].signal[:, change_undefined(case)] = torch.nan
    return found


def _ratio(name: str) -> Measure:
    def ratio(case: Case) -> Values:
        found = case.shared(_sizes)[name]
        return PerQuery(name, found.signal, ZERO_SHOT, weights=found.noise, over_layers="min")

    return ratio


signal_to_noise = partial(
    metric,
    applies=lambda case: case.reread is not None and not case.is_baseline and case.has_attention,
    within=SIZE,
    reads_twice=True,
)
for _name, _formula, _about in (
    (
        "snr",
        "sum |d| / sum |d - d'|, d = g.attn_out - z.attn_out, d' the same with all sums in another order",
        "signal to noise of the change of outputs; the aggregate is the weakest layer's",
    ),
    ("snr_centered", "the same of d less its mean over queries", "signal to noise of what sim_aou_centered compares"),
    (
        "snr_orthogonal",
        "the same of d without z - b_o's direction",
        "signal to noise of what sim_aou_orthogonal compares",
    ),
    ("snr_scores", "the same of attn_scores", "signal to noise of the change of scores: of sim_am_delta and alpha"),
):
    signal_to_noise(_name, _formula, _about)(_ratio(_name))


@signal_to_noise(
    "snr_low_layers",
    f"layers with snr or snr_scores < {SNR_THRESHOLD:g}",
    "number of layers whose change, of outputs or of scores, is not well above rounding",
)
def snr_low_layers(case: Case) -> Values:
    found = case.shared(_sizes)
    low = torch.stack([found[name].ratios() < SNR_THRESHOLD for name in ("snr", "snr_scores")]).any(0)
    return Logged("snr_low_layers", low.sum())
