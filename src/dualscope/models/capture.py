"""One attention function, registered with transformers, that records while the real model runs.

The model is switched to it inside ``capturing`` only, and is left as it was, also after an error.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, eager_mask

from dualscope.models import attend, varied
from dualscope.models.adapters import ADAPTERS
from dualscope.models.attention.variant import Variant
from dualscope.models.prefix import Prefix

if TYPE_CHECKING:
    from dualscope.models.model import Model

NAME = "dualscope"
_TAP = "_dualscope_tap"


@dataclass
class Session:
    """What the forward passes inside one ``capturing`` should see and leave behind.

    ``read`` is the row of the new tokens that is recorded (None records nothing), ``lead`` how many leading
    tokens (BOS) are not the query's own. ``cached`` holds, per layer, keys and values of tokens that the new ones
    continue. ``keep`` asks for this pass's own keys and values.
    """

    prefix: Prefix | None = None
    start: int = 0  # position of the first token that is not cached
    read: int | None = None
    lead: int = 0
    bos: int = 0  # how many of the prefix's first tokens are BOS
    keep: bool = False
    plain: bool = False
    want: frozenset[str] = frozenset()
    exit_rows: slice = field(
        default_factory=lambda: slice(None)
    )  # the rows whose layer outputs "exits" asks for
    cached: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    seen: dict[str, dict[int, Tensor]] = field(default_factory=dict)  # name -> layer -> tensor
    rules: dict[int, attend.Rules] = field(default_factory=dict)  # how each layer weighed
    calls: int = 0

    def record(self, name: str, layer: int, tensor: Tensor) -> None:
        self.seen.setdefault(name, {})[layer] = tensor

    def stack(self, name: str, device: torch.device | None = None) -> Tensor:
        """What was recorded under a name, layer by layer: [batch, layers, ...]."""
        layers = self.seen[name]
        tensors = [layers[layer] for layer in sorted(layers)]
        return torch.stack([t.to(device or tensors[0].device) for t in tensors], 1)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over the context's, the cached and the new tokens. Returns [batch, rows, heads, head_dim].

    ``query``, ``key`` and ``value`` are [batch, (kv_)heads, rows, head_dim]; ``slopes`` comes from adapters.
    """
    session, layer = module.__dict__[_TAP]
    session.calls += 1
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = session.rules[layer] = attend.Rules(scaling, softcap, sliding_window, slopes, session.plain)
    if session.keep:
        session.kept[layer] = (key, value)
    if "queries" in session.want:  # of every row, for learners that watch their own training
        session.record("queries", layer, query)
    if layer in session.cached:
        before = session.cached[layer]
        key, value = torch.cat([before[0], key], -2), torch.cat([before[1], value], -2)
    if session.read is not None:
        _record_scores(session, layer, query, key, rules)
    if (variant := varied.variant_in(module)) is not None:
        return _by_variant(variant, session, layer, query, key, value, rules), None
    own = attend.own_part(query, key, value, rules, attention_mask)
    out, lse = own
    if session.prefix is not None:
        # Rows start where the query part does; the prefix's first key stands at position 0.
        keys, values = session.prefix.keys[layer], session.prefix.values[layer]
        out, lse = attend.merge(attend.shared_part(query, keys, values, rules, session.start), own)
    if session.read is not None and "mass" in session.want:
        _record_mass(session, layer, query, key, rules, lse, s_aux)
    if s_aux is not None:
        out = attend.with_sinks(out, lse, s_aux)
    return out.transpose(1, 2), None


def _by_variant(
    variant: Variant,
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: attend.Rules,
) -> Tensor:
    prefix = session.prefix
    shared = None if prefix is None else (prefix.keys[layer], prefix.values[layer])
    out, weights = varied.attention(variant, query, key, value, shared, rules)
    if session.read is not None and "mass" in session.want:
        row, context = weights[:, :, session.read], session.lead if prefix is None else len(prefix)
        bos = session.lead if prefix is None else session.bos
        session.record("bos_mass", layer, row[..., :bos].sum(-1))
        session.record("demo_mass", layer, row[..., bos:context].sum(-1))
    return out.transpose(1, 2)


def _record_scores(session: Session, layer: int, query: Tensor, key: Tensor, rules: attend.Rules) -> None:
    """From the read position to the query's own tokens, itself included: [batch, heads, tokens]."""
    assert session.read is not None
    row = query[:, :, session.read : session.read + 1]
    own = key[:, :, session.lead : session.read + 1]
    away = attend.distances(1, own.shape[-2], own.shape[-2] - 1, query.device)
    own_scores = attend.scores(row, _heads(own, query), rules, away).squeeze(-2)
    if rules.window is not None:  # by mask, never by value
        own_scores = own_scores.masked_fill(away[0] >= rules.window, float("nan"))
    session.record("attn_scores", layer, own_scores)
    if "query_vectors" in session.want:
        session.record("query_vectors", layer, row.squeeze(-2).flatten(1))
    if "context_scores" in session.want and session.prefix is not None:
        keys = _heads(session.prefix.keys[layer], query)  # [heads, context, dim]
        wide = torch.promote_types(row.dtype, torch.float32)
        summed = torch.einsum("bhd,hcd->bc", row.squeeze(-2).to(wide), keys.to(wide))
        session.record("context_scores", layer, summed)


def _record_mass(
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    rules: attend.Rules,
    lse: Tensor,
    sinks: Tensor | None,
) -> None:
    """The softmax weight that the read position gives to BOS and to the demonstrations: [batch, heads]."""
    assert session.read is not None
    row = query[:, :, session.read : session.read + 1]
    total = lse[:, :, session.read]
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total))
    if session.prefix is None:
        # Among themselves the tokens stand from 0 on, whatever the offset of their positions.
        distance = attend.distances(1, 1, session.read, row.device)
        first = attend.scores(row, _heads(key[:, :, :1], query), rules, distance)
        weight = torch.exp(first.squeeze(-2) - total[..., None]).squeeze(-1)
        if rules.window is not None and session.read >= rules.window:
            weight = torch.zeros_like(weight)
        session.record("bos_mass", layer, weight if session.lead else torch.zeros_like(weight))
        session.record("demo_mass", layer, torch.zeros_like(weight))
        return
    keys = _heads(session.prefix.keys[layer], query)
    distance = attend.distances(1, keys.shape[-2], session.start + session.read, row.device)
    logits = attend.scores(row, keys, rules, distance).squeeze(-2)
    weights = torch.exp(logits - total[..., None])
    if rules.window is not None:
        weights = weights.masked_fill(distance[0] >= rules.window, 0.0)
    session.record("bos_mass", layer, weights[..., : session.bos].sum(-1))
    session.record("demo_mass", layer, weights[..., session.bos :].sum(-1))


def _heads(key: Tensor, query: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[-3]
    return key if groups == 1 else key.repeat_interleave(groups, -3)


def mask(*args: Any, mask_function: Any = causal_mask_function, **kwargs: Any) -> Tensor | None:
    """None where the pattern is plainly causal, else (windows, padding) transformers' own additive mask."""
    if mask_function is causal_mask_function and kwargs.get("attention_mask") is None:
        return None
    return eager_mask(*args, mask_function=mask_function, **kwargs)


# The two belong together: an attention without its mask function silently loses causality.
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)


@contextmanager
def capturing(model: "Model", session: Session) -> Iterator[Session]:
    """Inside, the model's attention is ours and what it does is recorded in the session."""
    with ExitStack() as stack:
        stack.enter_context(_implementation(model.hf, NAME))
        for layer, (block, module) in enumerate(zip(model.blocks, model.attentions, strict=True)):
            module.__dict__[_TAP] = (session, layer)
            stack.callback(module.__dict__.pop, _TAP)
            if model.family.adapter:
                adapted = partial(ADAPTERS[model.family.adapter], module, attention)
                module.forward = adapted
                stack.callback(module.__dict__.pop, "forward")
            if session.read is not None:
                for handle in _hooks(model, session, layer, block, module):
                    stack.callback(handle.remove)
        yield session


def _hooks(
    model: "Model", session: Session, layer: int, block: nn.Module, module: nn.Module
) -> Iterator[Any]:
    def attn_out(_: nn.Module, __: Any, output: Tensor) -> None:
        session.record("attn_out", layer, output[:, session.read])

    def residual(_: nn.Module, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        session.record("residual", layer, hidden[:, session.read])
        if "exits" in session.want:
            session.record("exits", layer, hidden[:, session.exit_rows])

    def inputs(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        session.record("layer_inputs", layer, args[0][:, session.read])

    yield module.get_submodule(model.family.output).register_forward_hook(attn_out)
    yield block.register_forward_hook(residual)
    if "layer_inputs" in session.want:
        projection = module.get_submodule(model.family.fused or model.family.key)
        yield projection.register_forward_pre_hook(inputs)


@contextmanager
def _implementation(hf: nn.Module, name: str) -> Iterator[None]:
    """Switch every config in the model to an attention implementation, and back."""
    owners: list[Any] = [module for module in hf.modules() if hasattr(module, "config")]
    configs = {id(owner.config): owner.config for owner in owners}.values()
    before = [(config, config._attn_implementation_internal) for config in configs]
    try:
        for config, _ in before:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
