"""Splices: what heads give in one run, put into another run of the whole model, and what becomes of the answers.

Three runs of every query stand side by side: without the context (z), with it (c), and the learner's, without it (g).
Into zero-shot: g in the place of z, on all own tokens. Into in-context learning: g in the place of c, the learner's
change where the context's was. Share = <D, D_icl> / |D_icl|^2 of the changes of the answers, as for `replay`; where
the learner is in-context learning itself the share is 1, put in or left in, and a random change of the same size has
about 0. With all layers given, nothing but the read position matters; layer by layer, the other tokens do too.

Queries without a context are read where they stand in it. Where positions are absolute a learner was taught, and is
asked, where sequences begin: there g is z and what the learner changes there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.core.spec import IN_CONTEXT
from dualscope.core.statistics import ANYWHERE, SIZE, Bounds
from dualscope.learners.learner import Change, Result
from dualscope.metrics.case import Case, PerHead, PerQuery, Values
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import Measure, metric
from dualscope.metrics.replay import Effect
from dualscope.metrics.single_heads import induction_scores
from dualscope.models.reading.given_outputs import HeadOutputs, NotedHeads, Places, SplicedHeads, spliced_prefix

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.reading.prefix import Prefix
    from dualscope.models.reading.trace import Trace

START = "splice_start"
ABLATED = ("induction_ablated", "other_heads_ablated")
HEADS = "splice_in_head"
INDUCTION_SHARE = 0.1  # of the heads are ablated, those that repeat most
DRAWS = 3  # of as many other heads
Splices = Mapping[str, Tensor]
"""By metric: answers [queries, classes] of all layers, and under ``name/layers`` [layers, queries, classes]; distances
[queries, layers]; of single heads [layers, heads, queries, classes]."""


class _Splicer:
    """The runs of one learner on one bench, and splices between them."""

    def __init__(self, bench: Bench, own: Result) -> None:
        if bench.lesson.read_at != "prompt-end":
            raise InputError("splices are made where the label is predicted; use read_at: prompt-end")
        self.bench, self.own, self.model, self.lesson = bench, own, bench.model, bench.lesson
        self.offset = len(self.lesson.context) - len(self.lesson.bos)
        own_tokens = zip(self.lesson.query_ids, self.lesson.queries, strict=True)
        self.lengths = {query: len(tokens) for query, tokens in own_tokens}
        self.zero, self.start = bench.once("splices: zero-shot", lambda: self.noted(None, None))
        self.icl, self.end = bench.once("splices: in-context", lambda: self.noted(bench.prefix, None))

    @property
    def is_context(self) -> bool:
        return self.own.role == "reference"

    def noted(
        self, prefix: Prefix | None, change: Change | None, offset: int | None = None
    ) -> tuple[HeadOutputs, Trace]:
        notes = NotedHeads(self.lengths)
        with nullcontext() if change is None else change.applied(self.model), self.model.intervened(notes):
            trace = self.read(prefix, offset)
        return notes.found, trace

    def learner(self) -> HeadOutputs:
        """What heads give as the learner changed the model; in-context learning's own is the context's."""
        if self.is_context:
            return self.icl
        change = self.own.learned.change
        if self.model.relative_positions:
            return self.noted(None, change)[0]
        before, after = (self.noted(None, one, 0)[0] for one in (None, change))
        return {
            query: [z + (g - at_start) for z, g, at_start in zip(heads, after[query], before[query], strict=True)]
            for query, heads in self.zero.items()
        }

    def read(self, prefix: Prefix | None, offset: int | None = None) -> Trace:
        start = self.offset if offset is None else offset
        return self.model.read(self.lesson, prefix, position_offset=0 if prefix is not None else start)

    def spliced(self, prefix: Prefix | None, edit: SplicedHeads) -> Trace:
        with self.model.intervened(edit):
            return self.read(prefix)

    def both(self, name: str, prefix: Prefix | None, edit: SplicedHeads) -> tuple[dict[str, Tensor], Trace]:
        """With all layers given, and with one at a time."""
        whole = self.spliced(prefix, edit)
        layers = [self.spliced(prefix, replace(edit, layers=frozenset({i}))) for i in range(self.model.n_layers)]
        by_layer = torch.stack([one.label_logprobs for one in layers])
        return {name: whole.label_logprobs, f"{name}/layers": by_layer}, whole

    def random(self, given: HeadOutputs) -> HeadOutputs:
        """Zero-shot's head outputs with a random change of the learner's size, token by token and head by head."""
        state = int(np.random.SeedSequence([self.bench.seed, 21]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(state)
        heads = self.model.n_heads
        found: HeadOutputs = {}
        for query in self.lesson.query_ids:
            found[query] = []
            for before, after in zip(self.zero[query], given[query], strict=True):
                change = (after - before).unflatten(-1, (heads, -1))
                noise = torch.randn(change.shape, generator=generator, dtype=torch.float64).to(change)
                noise *= change.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
                found[query].append(before + noise.flatten(-2))
        return found

    def at_labels(self, change: Change | None) -> Places:
        """What heads give on the label tokens of every demonstration when it is read alone, where it stands in the
        context.
        """
        found: dict[int, list[Tensor]] = {}
        bos = len(self.lesson.bos)
        with nullcontext() if change is None else change.applied(self.model):
            for number, shown in enumerate(self.lesson.demonstrations):
                name, tokens = f"demonstration:{number}", (*shown.prompt, *shown.label)
                alone = replace(
                    self.lesson, queries=(tokens,), labels=(shown.label_index,), query_ids=(name,), watched={}
                )
                notes = NotedHeads({name: len(tokens)})
                with self.model.intervened(notes):
                    self.model.read(alone, position_offset=shown.start - bos)
                for i in range(len(shown.label)):
                    place = len(shown.prompt) + i
                    found[shown.start + place] = [layer[place] for layer in notes.found[name]]
        return found

    def labels_given(self, name: str, given: Places) -> dict[str, Tensor]:
        """In-context learning after a context whose label tokens got other head outputs."""

        def answers(layers: frozenset[int] | None) -> Tensor:
            return self.read(spliced_prefix(self.model, self.lesson.context, given, layers)).label_logprobs

        by_layer = [answers(frozenset({layer})) for layer in range(self.model.n_layers)]
        return {name: answers(None), f"{name}/layers": torch.stack(by_layer)}

    def ablated(self, names: Collection[str]) -> dict[str, Tensor]:
        """In-context learning without what the context does to the heads that repeat most, or to as many others."""
        scores = induction_scores(self.model, self.lesson).mean(0).cpu()
        count = max(1, round(INDUCTION_SHARE * scores.numel()))
        order = scores.flatten().argsort(descending=True)
        found = {}

        def without(chosen: Tensor) -> Tensor:
            mask = torch.zeros(scores.numel(), dtype=torch.bool)
            mask[chosen] = True
            return self.spliced(self.bench.prefix, SplicedHeads(self.zero, heads=mask.view_as(scores))).label_logprobs

        if "induction_ablated" in names:
            found["induction_ablated"] = without(order[:count])
        if "other_heads_ablated" in names:
            rng = np.random.default_rng([self.bench.seed, 22])
            others = order[count:].numpy()
            drawn = [without(torch.from_numpy(rng.permutation(others)[:count])) for _ in range(DRAWS)]
            found["other_heads_ablated"] = torch.stack(drawn).mean(0)
        return found

    def of_heads(self) -> Tensor:
        """Zero-shot with what the context does to one head: [layers, heads, queries, classes]."""
        shape = self.model.n_layers, self.model.n_heads
        layers = []
        for layer in range(shape[0]):
            heads = []
            for head in range(shape[1]):
                mask = torch.zeros(shape, dtype=torch.bool)
                mask[layer, head] = True
                heads.append(self.spliced(None, SplicedHeads(self.icl, heads=mask)).label_logprobs)
            layers.append(torch.stack(heads))
        return torch.stack(layers)

    def distance(self, trace: Trace) -> Tensor:
        """How far the residual stream at the read position is from the nearest that the model sees, of another query
        with or without the context; 1: as far as those are from each other. [queries, layers]
        """
        natural = [wide(one.residual).cpu() for one in (self.start, self.end)]
        usual = torch.stack([_nearest(one, natural) for one in natural]).flatten(0, 1).median(0).values
        return _nearest(wide(trace.residual).cpu(), natural) / usual


def _nearest(residual: Tensor, natural: list[Tensor]) -> Tensor:
    """The distance to the nearest of other queries: [queries, layers, width] -> [queries, layers]."""
    found = []
    for layer in range(residual.shape[1]):
        apart = torch.stack([torch.cdist(residual[:, layer], one[:, layer]) for one in natural])
        apart = apart + torch.diag(torch.full((len(residual),), torch.inf, dtype=apart.dtype))
        found.append(apart.amin((0, 2)))
    return torch.stack(found, -1)


@torch.no_grad()
def read_splices(bench: Bench, case: Case, names: Collection[str]) -> Splices:
    """The answers of all runs that the named metrics need."""
    own = case.own
    if not can_be_spliced(own):
        return {}
    splicer = _Splicer(bench, own)
    found: dict[str, Tensor] = {START: splicer.start.label_logprobs}
    own_heads, prefix = splicer.learner(), bench.prefix
    wanted = set(names)
    runs = {
        "splice_in": (None, SplicedHeads(own_heads)),
        "splice_in_read": (None, SplicedHeads(own_heads, tokens="read")),
        "splice_in_before": (None, SplicedHeads(own_heads, tokens="before")),
        "splice_in_random": (None, SplicedHeads(splicer.random(own_heads))) if "splice_in_random" in wanted else None,
        "splice_out": (prefix, SplicedHeads(own_heads)),
        "splice_out_read": (prefix, SplicedHeads(own_heads, tokens="read")),
        "splice_out_before": (prefix, SplicedHeads(own_heads, tokens="before")),
        "splice_out_none": (prefix, SplicedHeads(splicer.zero)) if splicer.is_context else None,
    }
    distances = {"splice_in": "splice_in_distance", "splice_out": "splice_out_distance"}
    for name, run in runs.items():
        if run is not None and wanted & {name, distances.get(name)}:
            answers, trace = splicer.both(name, *run)
            found |= answers
            if name in distances:
                found[distances[name]] = splicer.distance(trace)
    if splicer.is_context:
        if "splice_out_labels_none" in wanted:
            found |= splicer.labels_given("splice_out_labels_none", splicer.at_labels(None))
        found |= splicer.ablated(wanted) if wanted & set(ABLATED) else {}
        if HEADS in wanted:
            found[HEADS] = splicer.of_heads()
    elif "splice_out_labels" in wanted and not own.learned.of_queries:
        found |= splicer.labels_given("splice_out_labels", splicer.at_labels(own.learned.change))
    return found  # more than was asked for is not shown


def can_be_spliced(own: Result) -> bool:
    """In-context learning, or a learner that changes the model that reads the queries."""
    learned = own.learned
    return own.role == "reference" or (learned.change is not None and not learned.predictions_only)


def _effect(case: Case) -> Effect:
    icl = case.trace if case.is_reference else case.reference
    return Effect.of(case.read[START], icl.label_logprobs)


def _share_of(name: str) -> Measure:
    return lambda case: case.shared(_effect).shares(name, case, IN_CONTEXT)


def _distance_of(name: str) -> Measure:
    return lambda case: PerQuery(name, case.read[name], IN_CONTEXT)


def _of_heads(name: str) -> Measure:
    def values(case: Case) -> Values:
        effect = case.shared(_effect)
        share = effect.caused(case.read[name]) / effect.size.mean()
        return PerHead(name, share.movedim(-1, 0), IN_CONTEXT)

    return values


def _splice(
    name: str, formula: str, about: str, within: Bounds = ANYWHERE, of: Callable[[str], Measure] = _share_of
) -> None:
    """Registers what `read_splices` reads as a metric."""
    of_splices = partial(metric, reading=read_splices, by_subset=False, default=False)
    of_splices(name, formula, about, applies=lambda case: name in case.read, within=within)(of(name))


_splice(
    "splice_in",
    "<D, D_icl> / |D_icl|^2, D the change of zero-shot's answers when heads give what they give in the learner's run",
    "share of ICL's effect on the answers that the learner's change of the heads causes, on all of a query's tokens",
)
_splice("splice_in_read", "the same at the read position alone", "the same at the read position alone")
_splice("splice_in_before", "the same on the tokens before it", "the same on the tokens before it")
_splice(
    "splice_in_random",
    "splice_in of a random change of the same size, token by token and head by head",
    "null of splice_in: how much any push of that size does",
)
_splice(
    "splice_out",
    "<A - z, D_icl> / |D_icl|^2, A ICL's answers when heads give what they give in the learner's run",
    "share of ICL's effect that is left with the learner's change in the place of the context's; ICL itself: 1",
)
_splice("splice_out_read", "the same at the read position alone", "the same at the read position alone")
_splice("splice_out_before", "the same on the tokens before it", "the same on the tokens before it")
_splice(
    "splice_out_none",
    "splice_out with zero-shot's heads",
    "share of ICL's effect that is left without the context's change of the query's tokens, by layer: who carries it",
)
_splice(
    "splice_out_labels",
    "splice_out on the label tokens of the demonstrations in the context, which the learner reads one by one",
    "share of ICL's effect that is left with the learner's change of label tokens in the place of the context's",
)
_splice(
    "splice_out_labels_none",
    "the same with the unchanged model",
    "share of ICL's effect that is left when label tokens see nothing of the other demonstrations",
)
_splice(
    "induction_ablated",
    f"splice_out_none of the {INDUCTION_SHARE:.0%} of heads with the highest induction_score",
    "share of ICL's effect that is left without induction heads (Olsson et al. 2022), on the query's own tokens",
)
_splice(
    "other_heads_ablated",
    f"the same of as many other heads, mean over {DRAWS} draws",
    "null of induction_ablated: other heads",
)
_splice(
    "splice_in_distance",
    "min over other queries |r' - r| / median of the same among natural r, r' the residual behind a spliced layer",
    "is the spliced model where it ever is? 1: as far from what it sees as that is from itself",
    within=SIZE,
    of=_distance_of,
)
_splice("splice_out_distance", "the same of splice_out", "the same of splice_out", within=SIZE, of=_distance_of)
_splice(
    HEADS,
    "splice_in of one head, with the context's change of it",
    "share of ICL's effect on the answers that the context's change of one head causes, head by head",
    of=_of_heads,
)
