"""One attention function, registered with transformers, that records while the real model runs.

The model is switched to it inside ``capturing`` only, and is left as it was, also after an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.models.architecture.parts import output_projection
from dualscope.models.attention_kinds.install import attention as attention_of_kind
from dualscope.models.attention_kinds.install import kind_in
from dualscope.models.attention_kinds.kinds import AttentionKind
from dualscope.models.capture import attention_kernel
from dualscope.models.capture.adapters import ADAPTERS
from dualscope.models.capture.onednn_linear import by_onednn
from dualscope.models.capture.session import (
    ReadRow,
    RowIndex,
    Session,
    as_rows,
    at,
    record_attention,
    record_mass,
    record_scores,
    scaled_at,
    some,
)

if TYPE_CHECKING:
    from dualscope.models.model import Model


# Behind the last layer's keys and values, only the rows that are read.
#
# Of a query the row that predicts its label is asked for, and of a context that is encoded nothing but keys and
# values. So in the last layer attention is computed for that row alone, and the MLP sees no other: what stands in the
# other rows from there on is not a number of the model's, and is not read.


def final_rows(model: Model, session: Session) -> RowIndex | None:
    """The one row of each sequence that the last layer is asked for; None: all.

    Where the model is intervened upon, hooks look for their rows among all.
    """
    intervened = bool(model.interventions) and session.acts is not None
    return None if intervened or kind_in(model.attentions[-1]) is not None else session.final


Attended = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, keys, values, transformers' mask


def narrowed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rows: RowIndex
) -> tuple[Attended, Tensor | None]:
    """Queries of the chosen row, [batch, heads, 1, dim], with the keys, values and mask that it sees; and which keys
    come after it, [batch, keys], where that differs from one sequence to another.
    """
    asked = some(query.transpose(1, 2), rows).transpose(1, 2)
    if isinstance(rows, int):
        seen = slice(None, rows + 1)
        mask = mask if mask is None else mask[..., rows : rows + 1, seen]
        return (asked, key[:, :, seen], value[:, :, seen], mask), None
    assert mask is None, "lengths are mixed where attention is plainly causal"
    places = torch.arange(key.shape[-2], device=query.device)
    return (asked, key, value, None), places > rows.to(query.device)[:, None]


def widened(values: Tensor, rows: RowIndex, length: int) -> Tensor:
    """[batch, 1, ...] in its row among ``length``: [batch, length, ...], zeros elsewhere.

    >>> widened(torch.ones(2, 1, 1), torch.tensor([0, 2]), 3).squeeze(-1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    whole = values.new_zeros(len(values), length, *values.shape[2:])
    if isinstance(rows, int):
        whole[:, rows] = values[:, 0]
    else:
        whole[torch.arange(len(values), device=values.device), rows.to(values.device)] = values[:, 0]
    return whole


def narrow_mlp(model: Model, rows: RowIndex, stack: ExitStack) -> None:
    """Until the stack closes, what follows the attention in the last block sees the chosen rows alone."""
    for module in _position_wise(model):
        narrow = _Narrow(rows)
        stack.callback(module.register_forward_pre_hook(narrow.before).remove)
        stack.callback(module.register_forward_hook(narrow.after).remove)


def _position_wise(model: Model) -> Iterator[nn.Module]:
    """The last block's children that hold linear layers and no attention: MLPs, which treat every row by itself.

    Not a mixture of experts, which sorts rows, and not one that other hooks watch: they expect all rows.
    """
    if model.has_experts:
        return
    attention = model.attentions[-1]
    for child in model.blocks[-1].children():
        modules = list(child.modules())
        composed = len(modules) > 1 and any(p.ndim == 2 for p in child.parameters())
        watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        if composed and attention not in modules and not watched:
            yield child


class _Narrow:
    """Hooks around a module: its inputs are cut to the chosen rows, and its output is put back among all."""

    def __init__(self, rows: RowIndex) -> None:
        self.rows, self.length = rows, 0

    def before(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        first = args[0] if args else None
        self.length = first.shape[1] if isinstance(first, Tensor) and first.ndim == 3 else 0
        if not self.length:  # it flattens batch and rows before: it sees all
            return None
        shape = args[0].shape[:2]
        return tuple(
            some(arg, self.rows) if isinstance(arg, Tensor) and arg.shape[:2] == shape else arg for arg in args
        )

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        return widened(output, self.rows, self.length) if self.length else None


# GELU by its tanh formula, as GPT-2, GPT-J, GPT-Neo and Gemma have it.
#
# transformers' older class takes eight elementwise kernels: a third of a reading's time on a CPU.


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x sigmoid(2 u).

    In float32 on a CPU torch's kernel spends its time in tanh; this takes less than half (`benchmarks/products.py`).
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
        return nn.functional.gelu(x, approximate="tanh")
    scale = 2 * math.sqrt(2 / math.pi)
    return x.square().mul_(0.044715 * scale).add_(scale).mul_(x).sigmoid_().mul_(x)


def bloom_gelu(x: Tensor) -> Tensor:
    """Bloom's GELU as plain operations: transformers' own, an autograd function, has no forward-mode derivative."""
    from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

    found: Tensor = bloom_gelu_forward(x)
    return found


def tanh_gelus(hf: nn.Module) -> list[nn.Module]:
    """The modules whose ``forward`` may be ``gelu_tanh``.

    >>> import torch
    >>> from transformers.activations import NewGELUActivation
    >>> slow, x = NewGELUActivation(), torch.linspace(-6, 6, 1000, dtype=torch.float64)
    >>> torch.allclose(gelu_tanh(x), slow(x), rtol=0, atol=1e-14), tanh_gelus(nn.Sequential(slow, nn.ReLU()))
    (True, [NewGELUActivation()])
    >>> bool((gelu_tanh(x.float()) - slow(x)).abs().max() < 1e-6)
    True
    """
    from transformers.activations import ACT2FN

    kinds = tuple(type(ACT2FN[name]) for name in ("gelu_new", "gelu_pytorch_tanh"))
    return [module for module in hf.modules() if type(module) in kinds]


def without_jvp(hf: nn.Module) -> list[nn.Module]:
    """Bloom's, which have a backward of their own and no forward-mode derivative; ``bloom_gelu`` has both."""
    from transformers.models.bloom.modeling_bloom import BloomGelu

    return [module for module in hf.modules() if type(module) is BloomGelu]


NAME = "dualscope"
_TAP = "_dualscope_tap"


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
    session, layer, rows = module.__dict__[_TAP]
    session.calls += 1
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Sinks weigh by the log-sum-exp, through which the fused kernels pass no gradient.
    plain = session.plain or (s_aux is not None and torch.is_grad_enabled())
    rules = session.rules[layer] = attention_kernel.Rules(scaling, softcap, sliding_window, slopes, plain)
    if session.keep:
        session.kept[layer] = (key, value)
    if "queries" in session.want:  # of every row, for learners that watch their own training
        session.record("queries", layer, query)
    if layer in session.cached:
        before = session.cached[layer]
        key, value = torch.cat([before[0], key], -2), torch.cat([before[1], value], -2)
    if session.read is not None:
        record_scores(session, layer, query, key, rules)
    if (kind := kind_in(module)) is not None:
        out = _by_kind(kind, session, layer, query, key, value, rules)
    else:
        out = _by_parts(session, layer, query, key, value, rules, attention_mask, s_aux, rows)
    if session.head_scales is not None:
        assert session.read is not None
        out = scaled_at(out, session.read, session.head_scales[:, layer])
    return out.transpose(1, 2).contiguous(), None  # as transformers' own: some models view it, others copy


def _by_parts(
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: attention_kernel.Rules,
    mask: Tensor | None,
    sinks: Tensor | None,
    rows: RowIndex | None,
) -> Tensor:
    """Softmax over the context's shared part and the sequence's own: [batch, heads, rows, head_dim].

    ``rows``: of each sequence this one alone, zeros elsewhere.
    """
    asked, hidden = (query, key, value, mask), session.hidden
    if rows is not None:
        asked, hidden = narrowed(query, key, value, mask, rows)
    out, lse = own = attention_kernel.own_part(*asked[:3], rules, asked[3], hidden)
    if session.prefix is not None:
        # Rows start where the query part does; the prefix's first key stands at position 0.
        keys, values = session.prefix.keys[layer], session.prefix.values[layer]
        ahead = session.start + (rows if isinstance(rows, int) else 0)
        out, lse = attention_kernel.merge(attention_kernel.shared_part(asked[0], keys, values, rules, ahead), own)
    if sinks is not None:
        out = attention_kernel.with_sinks(out, lse, sinks)
    if rows is not None:
        out = widened(out.transpose(1, 2), rows, query.shape[-2]).transpose(1, 2)
        lse = lse.expand(-1, -1, query.shape[-2])  # the chosen row's, wherever it is looked for
    if session.read is not None:
        row = ReadRow(session, layer, query, key, rules, lse, sinks)
        if "mass" in session.want:
            record_mass(row)
        if "attention" in session.want:
            record_attention(row)
    return out


def _by_kind(
    kind: AttentionKind,
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: attention_kernel.Rules,
) -> Tensor:
    prefix = session.prefix
    shared = None if prefix is None else (prefix.keys[layer], prefix.values[layer])
    out, weights = attention_of_kind(kind, query, key, value, shared, rules)
    if session.read is not None and "mass" in session.want:
        row = at(weights.transpose(1, 2), session.read)
        context = session.lead if prefix is None else len(prefix)
        bos = session.lead if prefix is None else session.bos
        session.record("bos_mass", layer, row[..., :bos].sum(-1))
        session.record("demo_mass", layer, row[..., bos:context].sum(-1))
    if isinstance(session.read, int) and "attention" in session.want:  # kinds of attention do not mix lengths
        row, context = (at(weights.transpose(1, 2), session.read), session.lead if prefix is None else len(prefix))
        last = session.read + 1 + (0 if prefix is None else context)
        session.record("attention_before", layer, row[..., :context])
        session.record("attention_own", layer, row[..., context:last])
    return out


def mask(*args: Any, mask_function: Any = None, **kwargs: Any) -> Tensor | None:
    """None where the pattern is plainly causal, else (windows, padding) transformers' own additive mask.

    While a CUDA graph is recorded transformers cannot look whether sequences are packed, and takes them for packed;
    ours never are, and windows are known to the attention itself.
    """
    from transformers.masking_utils import causal_mask_function, eager_mask

    mask_function = mask_function or causal_mask_function
    recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if recording or (mask_function is causal_mask_function and kwargs.get("attention_mask") is None):
        return None
    plain: Callable[..., Tensor] = eager_mask
    return plain(*args, mask_function=mask_function, **kwargs)


@contextmanager
def capturing(model: Model, session: Session) -> Iterator[Session]:
    """Inside, the model's attention is ours and what it does is recorded in the session."""
    attention_kernel.register(NAME, attention, mask)
    final = final_rows(model, session)
    with ExitStack() as stack:
        stack.enter_context(_implementation(model.configs, "eager" if model.family.needs_mask else NAME))
        if final is not None:
            narrow_mlp(model, final, stack)
        for layer, (block, module) in enumerate(zip(model.blocks, model.attentions, strict=True)):
            module.__dict__[_TAP] = (session, layer, final if block is model.blocks[-1] else None)
            stack.callback(module.__dict__.pop, _TAP)
            if model.family.adapter:
                adapted = partial(ADAPTERS[model.family.adapter], module, attention)
                module.forward = adapted
                stack.callback(module.__dict__.pop, "forward")
            for intervention in model.interventions if session.acts is not None else ():
                intervention.attach(model, session, layer, stack)  # before what is recorded, so that it shows
            if session.read is not None:
                for handle in _hooks(model, session, layer, block, module):
                    stack.callback(handle.remove)
        function, activations = (
            (bloom_gelu, model.activations_without_jvp) if session.plain else (gelu_tanh, model.tanh_gelus)
        )
        for activation in activations:
            activation.forward = function
            stack.callback(activation.__dict__.pop, "forward")
        if not session.plain:
            by_onednn(model, stack)
        if session.unembed is not None:
            head = model.hf.get_output_embeddings()
            stack.callback(head.register_forward_pre_hook(_only(session.unembed)).remove)
        yield session


def _only(rows: RowIndex | slice) -> Any:
    """Lets only some rows reach the unembedding."""
    return lambda _, args: (some(args[0], rows), *args[1:])


def _hooks(model: Model, session: Session, layer: int, block: nn.Module, module: nn.Module) -> Iterator[Any]:
    assert session.read is not None
    read = session.read

    def attn_out(_: nn.Module, __: Any, output: Tensor) -> None:
        session.record("attn_out", layer, at(output, read))

    def residual(_: nn.Module, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        session.record("residual", layer, at(hidden, read))
        if "exits" in session.want:
            session.record("exits", layer, some(hidden, session.exits))

    def inputs(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        session.record("layer_inputs", layer, at(as_rows(args[0]), read))

    def heads(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        session.record("heads", layer, at(args[0], read).unflatten(-1, (model.n_heads, -1)))

    yield output_projection(model, layer).register_forward_hook(attn_out)
    yield block.register_forward_hook(residual)
    if "layer_inputs" in session.want:
        projection = module.get_submodule(model.family.fused or model.family.key)
        yield projection.register_forward_pre_hook(inputs)
    if "heads" in session.want:
        yield output_projection(model, layer).register_forward_pre_hook(heads)


@contextmanager
def _implementation(configs: Sequence[Any], name: str) -> Iterator[None]:
    """Switch every config in the model to an attention implementation, and back."""
    before = [(config, config._attn_implementation_internal) for config in configs]
    try:
        for config, _ in before:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
