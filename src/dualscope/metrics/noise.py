"""Signal to noise: is a change larger than what another batch size alone would change?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dualscope.core.statistics import SNR_THRESHOLD
from dualscope.metrics.attention_map import change_undefined, seen_scores, visible
from dualscope.metrics.case import Case
from dualscope.metrics.cosine import layer_slices, wide
from dualscope.metrics.metric import family
from dualscope.metrics.values import Logged, PerQuery, Values
from dualscope.models.trace import Trace


def _size(change: Tensor) -> Tensor:
    """Norm over everything but queries and layers: [queries, layers]."""
    return torch.linalg.vector_norm(change.flatten(2), dim=-1)


def signal_and_noise(zero_shot: Trace, trace: Trace, reread: Trace) -> dict[str, tuple[Tensor, Tensor]]:
    """|change| and |difference between the two reads|, [queries, layers], of outputs and of scores.

    NaN for queries that were read only once.
    """
    row = {name: index for index, name in enumerate(trace.query_ids)}
    twice = [index for index, name in enumerate(reread.query_ids) if name in row]
    rows = torch.tensor([row[reread.query_ids[i]] for i in twice], dtype=torch.long)

    def pick(whole: Trace, index: Tensor) -> Trace:
        return whole.map(lambda tensor: tensor[index.to(tensor.device)])

    z, g, again = (
        pick(zero_shot, rows),
        pick(trace, rows),
        pick(reread, torch.tensor(twice, dtype=torch.long)),
    )
    tokens = again.attn_scores.shape[-1]  # a few queries may all be shorter than the longest of all
    outputs, scores = [], []
    for at in layer_slices(g.attn_scores):
        now, then = wide(g.attn_out[:, at]), wide(again.attn_out[:, at])
        outputs.append((_size(now - wide(z.attn_out[:, at])), _size(now - then)))
        own = visible(z, at)
        now, then = seen_scores(g, own, at), seen_scores(again, own[..., -tokens:], at)
        scores.append((_size(now - seen_scores(z, own, at)), _size(now[..., -tokens:] - then)))

    def among_all(chunks: list[Tensor]) -> Tensor:
        values = torch.cat(chunks, 1)
        whole = values.new_full((len(trace), values.shape[1]), torch.nan)
        whole[rows.to(whole.device)] = values
        return whole

    return {
        name: (among_all([s for s, _ in pairs]), among_all([n for _, n in pairs]))
        for name, pairs in (("snr", outputs), ("snr_scores", scores))
    }


def _snr(case: Case, names: frozenset[str]) -> Iterator[Values]:
    assert case.reread is not None
    sizes = signal_and_noise(case.zero_shot, case.trace, case.reread)
    sizes["snr_scores"][0][:, change_undefined(case)] = torch.nan
    for name in names & sizes.keys():
        signal, noise = sizes[name]
        yield PerQuery(name, signal, "zero-shot", weights=noise, over_layers="min")
    if "snr_low_layers" in names:
        signal, noise = (part.nansum(0) for part in sizes["snr"])
        yield Logged("snr_low_layers", (signal / noise < SNR_THRESHOLD).sum())


_applies = lambda case: case.reread is not None and case.learner != "zero-shot" and case.has_attention  # noqa: E731
_add = family(_snr, _applies)
_add(
    "snr",
    "sum |g.attn_out - z.attn_out| / sum |g.attn_out - the same at another batch size|",
    "signal to noise of the change of outputs (aggregate: the weakest layer; infinite: bitwise the same)",
)
_add(
    "snr_scores",
    "the same of attn_scores",
    "signal to noise of the change of scores; the aggregate is the weakest layer's",
)
_add(
    "snr_low_layers",
    f"layers with snr < {SNR_THRESHOLD:g}",
    "number of layers whose change is not well above rounding",
)
