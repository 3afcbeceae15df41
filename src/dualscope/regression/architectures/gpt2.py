"""GPT-2 blocks, transformers' own, as in-context learners of functions: several copies (one a seed) as one module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dualscope.models.attention_kinds import causal_mask
from dualscope.regression.spectral import Block

# Causal attention of several copies in one kernel, forward and backward.
#
# Under ``vmap`` PyTorch's fused attention has no backward pass on a GPU, and without it the weights of every pair of
# tokens are written and read a dozen times a step. Here the copies join the batch, and the kernel never sees ``vmap``.


NAME = "dualscope-copies"
_HALF = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
Gradients = tuple[Tensor, Tensor, Tensor]


def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[batch, heads, tokens, dim] each -> the output, and what the way back needs: log-sum-exps and, of kernels with
    dropout, which we never ask for, two states of a generator.
    """
    if query.is_cuda:
        found = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, scale=scale)
        return found[0], found[1], found[6], found[7]
    output, sums = _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scale)
    return output, sums, query.new_empty(0), query.new_empty(0)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    seed: Tensor,
    offset: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    given = (gradient, query, key, value, output, sums)
    if query.is_cuda:
        back = _aten._scaled_dot_product_flash_attention_backward
        length = query.shape[-2]
        return cast("Gradients", back(*given, None, None, length, length, 0.0, True, seed, offset, scale=scale))
    back = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    return cast("Gradients", back(*given, 0.0, True, scale=scale))


# Shapes and strides are asked of the kernels themselves, so that a compiler is told the truth.
causal = torch.library.custom_op("dualscope::causal_attention", _forward, mutates_args=())
causal.register_fake(_forward)
_causal_backward = torch.library.custom_op("dualscope::causal_attention_backward", _backward, mutates_args=())
_causal_backward.register_fake(_backward)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _way_back(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_causal_backward(gradient, *ctx.saved_tensors, ctx.scale), None)


def _over_copies(
    info: Any, dims: tuple[int | None, ...], query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    joined = [
        one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip((query, key, value), dims, strict=False)
    ]
    output, sums, *states = causal(*(one.flatten(0, 1) for one in joined), scale)
    apart = (info.batch_size, -1)
    return (output.unflatten(0, apart), sums.unflatten(0, apart), *states), (0, 0, None, None)


causal.register_autograd(_way_back, setup_context=_remember)
causal.register_vmap(_over_copies)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def fusible(device: torch.device, dim: int) -> bool:
    """Whether there is such a kernel for heads of that size: on NVIDIA's GPUs since Ampere, and on CPUs."""
    if device.type != "cuda":
        return device.type == "cpu"
    recent = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return recent and dim % 8 == 0 and dim <= 256


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """For transformers' interface: fused in half precision, in which trainings on a GPU are; else step by step, as
    transformers' own, because what is measured is measured in float32. Prompts have no padding: the mask is causal.
    """
    if query.dtype not in _HALF or not fusible(query.device, query.shape[-1]):
        from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward

        found: tuple[Tensor, Tensor] = eager_attention_forward(
            module, query, key, value, attention_mask, scaling, **options
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return causal(query, key, value, scale)[0].transpose(1, 2), None


def register() -> str:
    """The name under which transformers knows it from now on."""
    from dualscope.models.capture import attention_kernel

    attention_kernel.register(NAME, attention)
    return NAME


ALIGNED = 16  # weights


@dataclass(frozen=True)
class Size:
    """Of a GPT-2; Garg et al.'s is the default."""

    layers: int = 12
    width: int = 256
    heads: int = 8


class Gpt2Learner(nn.Module):
    """x_1, y_1, x_2, ... -> a guess of every y from what stands before it, at the token of its x.

    Tokens are x itself and (y, 0, ..., 0); they are read in by one linear map and the guess is read out by
    another (Garg et al.). ``attention``: an attention kind and its options, as `dualscope train` takes them.
    Every weight has the copies as its first dimension; a copy depends on its own seed alone.
    """

    def __init__(
        self,
        d: int,
        points: int,
        seeds: Sequence[int],
        size: Size = Size(),
        attention: Mapping[str, Any] | None = None,
        outputs: int = 1,
        pairs: bool = True,
    ) -> None:
        super().__init__()
        self.d, self.size, self.pairs = d, size, pairs
        positions = 2 * points if pairs else points
        copies = [make_copy(seed, d, positions, size, attention, outputs) for seed in seeds]
        # All weights of a copy lie in one row, of which each is a view: one tensor to clip and to update.
        self.shapes = {name: value.shape for name, value in copies[0].named_parameters()}
        rows = torch.stack([torch.cat([value.detach().flatten() for value in one.parameters()]) for one in copies])
        # Rows as long as a multiple of what a GPU reads at once: of others, products take four times as long.
        self.flat = nn.Parameter(nn.functional.pad(rows, (0, -rows.shape[1] % ALIGNED)))
        for name, value in copies[0].named_buffers():
            self.register_buffer(name.replace(".", "/"), value.clone(), persistent=False)
        # Made once: a recorded step may copy nothing from the host.
        self.register_buffer("mask", causal_mask(positions, positions)[None, None], persistent=False)
        modules = copies[0].gpt2.get_submodule("h.0").named_modules()
        norms = {path: one for path, one in modules if isinstance(one, nn.LayerNorm)}
        self._norms = {f"{path}.{name}" for path, one in norms.items() for name, _ in one.named_parameters()}
        # Shapes and code alone: the weights are handed to it at every call. Outside of this module's parameters.
        self.__dict__["template"] = copies[0].to("meta")
        self._block: Callable[..., Tensor] = vmap(self._one_block, in_dims=(0, 0, None))

    def compile_blocks(self) -> None:
        """For training: one compiled block serves every layer, so compiling takes seconds, not minutes."""
        torch._dynamo.reset()  # it keeps eight of a function, and goes on without compiling after that
        plain, compiled = self._block, torch.compile(self._block, dynamic=False)
        self._block = lambda *args: compiled(*args) if torch.is_grad_enabled() else plain(*args)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x [copies, tasks, points, d], y [copies, tasks, points] -> guesses [copies, tasks, points]."""
        weights = self._grouped()  # once: the way back through it writes a gradient of every weight
        return self._read(weights[0], self._hidden(weights, pair_tokens(x, y))[-1][..., ::2, :]).squeeze(-1)

    def hidden(self, tokens: Tensor, keep: bool = False) -> list[Tensor]:
        """The residual stream after every layer (``keep``; otherwise after the last alone), [copies, tasks,
        tokens, width]; the last through the final norm.
        """
        return self._hidden(self._grouped(), tokens, keep)

    def _hidden(self, weights: list[dict[str, Tensor]], tokens: Tensor, keep: bool = False) -> list[Tensor]:
        states = vmap(self._embed)(weights[0], tokens)
        mask = self.get_buffer("mask")[..., : tokens.shape[-2], : tokens.shape[-2]]
        found = [states] if keep else []
        for layer in range(self.size.layers):
            states = self._block(weights[layer + 1], states, mask)
            if keep and layer < self.size.layers - 1:
                found.append(states)
        return [*found, vmap(self._norm)(weights[0], states)]

    def read_out(self, states: Tensor) -> Tensor:
        """[copies, ..., width] -> [copies, ..., outputs]."""
        return self._read(self.named(), states)

    def _read(self, weights: dict[str, Tensor], states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):  # a guess has more digits than bfloat16
            flat = states.flatten(1, -2).to(self.flat.dtype)
            out = torch.baddbmm(weights["read_out.bias"].unsqueeze(1), flat, weights["read_out.weight"].mT)
        return out.view(*states.shape[:-1], -1)

    def named(self, flat: Tensor | None = None) -> dict[str, Tensor]:
        """The weights under transformers' names, each [copies, ...]; those in ``flat``, if it is given."""
        rows, lengths = self.flat if flat is None else flat, [shape.numel() for shape in self.shapes.values()]
        *pieces, _ = rows.split([*lengths, rows.shape[1] - sum(lengths)], dim=1)
        return {name: piece.view(-1, *shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def matrices(self) -> list[Block]:
        """Where the matrices of attention and MLPs lie in ``flat``; queries, keys and values are three."""
        found, start = [], 0
        for name, shape in self.shapes.items():
            if name.startswith("gpt2.h.") and len(shape) == 2:
                rows, columns = shape
                pieces = 3 if ".c_attn." in name else 1
                width = columns // pieces
                found += [Block(start + i * width, rows, width, columns) for i in range(pieces)]
            start += shape.numel()
        return found

    def _grouped(self) -> list[dict[str, Tensor]]:
        """The weights outside of blocks, then those of each block under its own names.

        Under autocast, projections in half precision: mapped over copies, autocast rounds their products, and adds a
        bias in float32, so that all they give would be twice as long.
        """
        groups: list[dict[str, Tensor]] = [{} for _ in range(self.size.layers + 1)]
        kind, named = self.flat.device.type, self.named()
        rounded = named
        if torch.is_autocast_enabled(kind):
            rounded = self.named(self.flat.to(torch.get_autocast_dtype(kind)))
        for name, value in named.items():
            parts = name.split(".")
            if parts[:2] == ["gpt2", "h"]:
                own = ".".join(parts[3:])
                groups[int(parts[2]) + 1][own] = value if own in self._norms else rounded[name]
            else:
                groups[0][name] = value
        return groups

    def _embed(self, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
        read = nn.functional.linear(tokens, weights["read_in.weight"], weights["read_in.bias"])
        return read + weights["gpt2.wpe.weight"][: tokens.shape[-2]]

    def _norm(self, weights: dict[str, Tensor], states: Tensor) -> Tensor:
        own = {name: weights[f"gpt2.ln_f.{name}"] for name in ("weight", "bias")}
        found: Tensor = functional_call(self.__dict__["template"].gpt2.ln_f, own, (states,))
        return found

    def _one_block(self, weights: dict[str, Tensor], states: Tensor, mask: Tensor) -> Tensor:
        block = self.__dict__["template"].gpt2.h[0]
        fixed = {name: self.get_buffer(f"gpt2/h/0/{name.replace('.', '/')}") for name, _ in block.named_buffers()}
        found: Tensor = functional_call(block, weights | fixed, (states,), {"attention_mask": mask})
        return found


class Copy(nn.Module):
    """One learner: a linear map in, transformers' GPT2Model through ``inputs_embeds``, a linear map out."""

    def __init__(self, read_in: nn.Linear, gpt2: nn.Module, read_out: nn.Linear) -> None:
        super().__init__()
        self.read_in, self.gpt2, self.read_out = read_in, gpt2, read_out

    def forward(self, tokens: Tensor) -> Tensor:
        """[tasks, tokens, d] -> [tasks, tokens, outputs]."""
        hidden = self.gpt2(inputs_embeds=self.read_in(tokens), use_cache=False).last_hidden_state
        found: Tensor = self.read_out(hidden)
        return found


def make_copy(seed: int, d: int, positions: int, size: Size, attention: Mapping[str, Any] | None, outputs: int) -> Copy:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=positions,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",  # GPT-2's, in one kernel
        attn_implementation=register(),  # type: ignore[call-arg]  # of every configuration, by its base class
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = GPT2LMHeadModel(config)
        read_in, read_out = nn.Linear(d, size.width), nn.Linear(size.width, outputs)
        if attention:
            from dualscope.models.attention_kinds import apply

            apply(whole, attention)
    del whole.transformer.wte  # prompts have no words
    return Copy(read_in, whole.transformer, read_out)


def pair_tokens(x: Tensor, y: Tensor) -> Tensor:
    """x [..., points, d], y [..., points] -> x_1, (y_1, 0, ...), x_2, ...: [..., 2 points, d]."""
    answers = torch.zeros_like(x)
    answers[..., 0] = y
    return torch.stack([x, answers], -2).flatten(-3, -2)
