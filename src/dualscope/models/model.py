"""The causal language model under study, with its tokenizer."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.core.words import AdapterMode
from dualscope.models.architecture.families import Family, family_of, max_positions
from dualscope.models.architecture.parts import Part, Qkv, parts_of, read_out
from dualscope.models.capture.block_hooks import ActivationEdit
from dualscope.models.capture.hooks import tanh_gelus, without_jvp
from dualscope.models.capture.onednn_linear import linear_layers
from dualscope.models.capture.session import Session
from dualscope.models.loading import device_and_precision as precisions
from dualscope.models.loading.digest import digest_of_files, digest_of_module
from dualscope.models.reading.memory import weight_bytes
from dualscope.models.reading.prefix import Prefix, Prefixes, encoded
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.tasks.lesson import Lesson


class Model:
    """A Hugging Face causal LM, unmodified, and what we must know of it to read it.

    ``Model.load`` takes a name, a folder, a GGUF file or ``"embedded"``; `from_hf` wraps a module built elsewhere.
    ``n_layers``, ``n_heads``, ``width``, ``head_dim``, ``max_positions``, ``device`` and ``dtype`` describe it.

    >>> model = Model.load("embedded", device="cpu")
    >>> Model.from_hf(model.hf, model.tokenizer, name="mine").n_heads
    6
    """

    def __init__(
        self,
        hf: nn.Module,
        tokenizer: Any,
        name: str = "module",
        *,
        revision: str | None = None,
        variant: str = "trained",
        init_seed: int | None = None,
        precision: str | None = None,
        digest: str | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        self.hf: Any = hf
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.variant = variant
        self.init_seed = init_seed
        self.dtype: torch.dtype = hf.dtype  # type: ignore[assignment]
        self.precision = precision or precisions.name_of(self.dtype)
        self.family: Family = family_of(hf)
        self.counters: Counter[str] = Counter()
        self.in_other_order = False  # see dualscope.models.reading.read
        self.interventions: list[ActivationEdit] = []  # see `intervened`
        self._digest, self._files = digest, files
        self._accepts = set(inspect.signature(hf.forward).parameters)
        if self.family.positions != "alibi" and "position_ids" not in self._accepts:
            raise InputError(f"{name}: {type(hf).__name__} takes no position_ids, so a context cannot be shared")

    @classmethod
    def from_hf(cls, module: nn.Module, tokenizer: Any, name: str = "module") -> "Model":
        """A module and a tokenizer that you have already: trained here, or built by hand. The module is not copied.

        Args:
            module: A causal language model of transformers.
            tokenizer: Its tokenizer, of transformers too.
            name: What rows and reports call the model.

        Raises:
            InputError: No language model of transformers, or one that has no weights yet (on the meta device).
        """
        for what in ("config", "forward", "get_output_embeddings"):
            if not hasattr(module, what):
                raise InputError(
                    f"{name}: a {type(module).__name__} is no causal language model of transformers (it has no "
                    f"{what}); give the module that AutoModelForCausalLM makes"
                )
        empty = [where for where, weight in module.named_parameters() if weight.is_meta]
        if empty:
            raise InputError(
                f"{name}: {len(empty)} weights are on the meta device, which holds no numbers ({empty[0]}, ...); load "
                "them first, as with from_pretrained"
            )
        if not callable(tokenizer):
            raise InputError(f"{name}: a tokenizer is needed beside the module, found {type(tokenizer).__name__}")
        return cls(module, tokenizer, name)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str = "auto",
        dtype: str = "float32",
        variant: str = "trained",
        init_seed: int = 0,
        offline: bool = False,
        adapter: str | None = None,
        adapter_mode: AdapterMode = "merged",
    ) -> "Model":
        """Load a model with its tokenizer.

        Args:
            name: ``embedded``, a folder, a GGUF file, or a hub name (``name@revision``).
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
            dtype: ``float32``, ``float64``, ``tf32``, ``bfloat16`` or ``float16``.
            variant: ``trained``, ``untrained``, ``trained-embeddings`` or ``shuffled``.
            init_seed: The seed of weights that are drawn anew.
            offline: Whether nothing may be fetched.
            adapter: A folder with a LoRA adapter (peft).
            adapter_mode: ``merged`` into the weights, or ``active``: a path of its own beside them.

        >>> model = Model.load("embedded", device="cpu")
        >>> model.n_layers, model.width, model.max_positions
        (6, 192, 1024)

        Raises:
            InputError: Not found, pickled, quantised, an architecture that is refused, or no such variant or device.
        """
        from dualscope.models.loading.load import load

        return load(name, device, dtype, variant, init_seed, offline, adapter, adapter_mode)

    def __repr__(self) -> str:
        """One line: the module itself is ``model.hf``."""
        variant = "" if self.variant == "trained" else f", {self.variant}"
        sizes = f"{type(self.hf).__name__}, {self.n_layers} layers, {self.n_heads} heads"
        return f"Model({self.name!r}{variant}: {sizes}, {self.precision}, {', '.join(map(str, self.devices))})"

    # What it is made of

    @property
    def device(self) -> torch.device:
        found: torch.device = self.hf.device
        return found

    @property
    def devices(self) -> list[torch.device]:
        """Where its weights are: one device, or several where a large model is split by layers."""
        return list(dict.fromkeys(parameter.device for parameter in self.hf.parameters()))

    @cached_property
    def config(self) -> Any:
        return self.hf.config.get_text_config()

    @property
    def n_layers(self) -> int:
        return len(self.blocks)

    @property
    def n_heads(self) -> int:
        return int(self.config.num_attention_heads)

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @cached_property
    def max_positions(self) -> int:
        return max_positions(self.config, self.tokenizer)

    @property
    def relative_positions(self) -> bool:
        return self.family.relative_positions

    @property
    def has_experts(self) -> bool:
        """Whether tokens go to different experts: which ones is known only while the model runs."""
        return bool(getattr(self.config, "num_experts_per_tok", None))

    @cached_property
    def mixes_lengths(self) -> bool:
        """Whether queries of different lengths may share a batch: where attention sees all that came before."""
        windows = any(getattr(self.config, name, None) for name in ("sliding_window", "attention_types"))
        varied = getattr(self.config, "dualscope_attention", None) is not None
        return not windows and not varied and self.family.positions != "alibi"

    @cached_property
    def takes_draws(self) -> bool:
        """Whether several draws may be computed in one batch: on one device, where every row is computed by itself."""
        varied = getattr(self.config, "dualscope_attention", None) is not None
        return len(self.devices) == 1 and not self.has_experts and not varied and self.family.tested

    @property
    def tied_embeddings(self) -> bool:
        return self.hf.get_input_embeddings().weight is self.hf.get_output_embeddings().weight

    @property
    def digest(self) -> str:
        """A hash of the weights: of the files they came from, or else of the tensors themselves."""
        if self._digest is None:
            self._digest = digest_of_files(self._files) if self._files else digest_of_module(self.hf)
        return self._digest

    @property
    def output_bias(self) -> Tensor | None:
        """What the attention's output projection adds whatever the heads say: [layers, width]; None: nothing."""
        outputs = [module.get_submodule(self.family.output) for module in self.attentions]
        biases = [bias for output in outputs if (bias := getattr(output, "bias", None)) is not None]
        if len(biases) < len(outputs):
            return None
        return torch.stack([bias.detach().to(self.device) for bias in biases])

    @cached_property
    def blocks(self) -> list[nn.Module]:
        return list(self.hf.get_submodule(self.family.blocks))

    @cached_property
    def attentions(self) -> list[nn.Module]:
        return [block.get_submodule(self.family.attention) for block in self.blocks]

    @cached_property
    def weights_by_device(self) -> Mapping[torch.device, int]:
        """Bytes of weights on each device; counted once, because every batch asks."""
        return {device: weight_bytes(self.hf, self.dtype, device) for device in self.devices}

    @cached_property
    def modules(self) -> list[nn.Module]:
        """All of its modules, listed once: walking through them takes longer than a small product."""
        return list(self.hf.modules())

    @cached_property
    def configs(self) -> list[Any]:
        """Every config in the model, once each."""
        owners: list[Any] = [module for module in self.modules if hasattr(module, "config")]
        return list({id(owner.config): owner.config for owner in owners}.values())

    @cached_property
    def tanh_gelus(self) -> list[nn.Module]:
        return tanh_gelus(self.hf)

    @cached_property
    def linear_layers(self) -> list[nn.Module]:
        return linear_layers(self.hf)

    @cached_property
    def activations_without_jvp(self) -> list[nn.Module]:
        return without_jvp(self.hf)

    def parts(self, layers: Iterable[int] | None = None, roles: Sequence[Qkv] = ("key", "value")) -> list[Part]:
        """The key and value weights and biases (or those of ``roles``) of all layers or of some."""
        wanted = range(self.n_layers) if layers is None else layers
        return [part for layer in wanted for role in roles for part in parts_of(self, layer, role)]

    @property
    def head_dim(self) -> int:
        return int(getattr(self.config, "head_dim", None) or self.width // self.n_heads)

    # What it does

    @contextmanager
    def running(self) -> Iterator[None]:
        """Eval mode and the model's own precision, whatever was set before, and that again afterwards."""
        training = [module for module in self.modules if module.training]
        before = torch.get_default_dtype()
        try:
            self.hf.eval()
            if self.dtype == torch.float64:  # some modules make scalars in the default dtype
                torch.set_default_dtype(torch.float64)
            with precisions.matmuls(self.precision):
                yield
        finally:
            torch.set_default_dtype(before)
            for module in training:
                module.training = True

    @contextmanager
    def intervened(self, *interventions: ActivationEdit) -> Iterator[None]:
        """Inside, queries are read with these changes of what the model computes where labels are predicted."""
        before = list(self.interventions)
        self.interventions += interventions
        try:
            yield
        finally:
            self.interventions = before

    def forward(self, tokens: Tensor, start: int | Tensor = 0, keep: int = 0) -> Tensor:
        """Logits of the last ``keep`` tokens (0: of all) of [batch, tokens] whose first stands at ``start``.

        That is one position for all sequences, or [batch] one for each.
        """
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if "position_ids" in self._accepts:
            first, offset = (0, start[:, None]) if isinstance(start, Tensor) else (start, 0)
            positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
            inputs["position_ids"] = (positions[None] + offset).expand(tokens.shape)
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = keep
        logits: Tensor = self.hf(**inputs).logits
        return logits[:, -keep:]

    def readout(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of a residual stream [..., width] through final norm, unembedding, logit scale and softcap.

        With ``rows`` only the logits of these tokens are computed.
        """
        return read_out(self, hidden, rows)

    def prefix(self, tokens: Sequence[int], known: Prefix | None = None) -> Prefix:
        """Encode a context once; every query can then be read after it. What ``known`` shares is not encoded again."""
        return encoded(self, tokens, known)

    def read(
        self,
        lesson: "Lesson",
        prefix: Prefix | None = None,
        *,
        want: frozenset[str] = frozenset(),
        position_offset: int = 0,
        batch_size: int | None = None,
        plain: bool = False,
        head_scales: Tensor | None = None,
        logits_as: Callable[[Tensor], Tensor] | None = None,
    ) -> Trace:
        """The trace of every query of a lesson: after BOS alone, or after the prefix that is given.

        Args:
            lesson: The queries, in the model's own tokens.
            prefix: The context, encoded (`Model.prefix`); None: BOS alone.
            want: What else is noted: ``exits`` (label probabilities at every layer), ``mass`` (softmax weight on
                demonstrations and BOS), ``attention`` (every softmax weight), ``layer_inputs``, ``query_vectors``,
                ``context_scores`` and ``context_products`` (from the read position to the context's tokens, as softmax
                sees them, and k.q alone), ``heads`` (what each head hands to the output projection), ``next_tokens``
                (the likeliest next tokens, and the log-probabilities of those that the lesson watches).
            position_offset: Without a prefix, the position of the first token after BOS.
            batch_size: Queries at once; None: as many as memory allows.
            plain: Whether attention is computed by the plain implementation.
            head_scales: [queries, layers, heads], multiplies each head's output at the read position as the model runs.
            logits_as: Is applied to all logits before their softmax.
        """
        from dualscope.models.reading.read import Reading, read

        self.counters["zero-shot reads" if prefix is None else "context reads"] += 1
        start = position_offset if prefix is None else len(prefix)
        plain = plain or self.in_other_order
        return read(Reading(self, lesson, prefix, want, start, plain, head_scales, logits_as), batch_size)[0]

    def read_draws(
        self,
        lesson: "Lesson",
        draws: int,
        prefixes: Prefixes | None = None,
        *,
        plain: bool = False,
        logits_as: Callable[[Tensor], Tensor] | None = None,
    ) -> list[Trace]:
        """The traces of a lesson's queries read several times at once.

        Each query stands in a batch once for each draw: after the contexts of ``prefixes``, one each, or where
        the caller has changed the model for each of them (`dualscope.descent.changes_of_draws`).
        """
        from dualscope.models.reading.read import Reading, read

        self.counters["zero-shot reads" if prefixes is None else "context reads"] += draws
        start = 0 if prefixes is None else len(prefixes)
        reading = Reading(self, lesson, prefixes, frozenset(), start, plain, logits_as=logits_as, draws=draws)
        return read(reading, None)

    def check(self, session: Session) -> None:
        """Every layer's attention must have come to us: an architecture that bypasses the interface only warns."""
        if session.calls != self.n_layers:
            why = (
                "has other than one attention a layer, which cannot be measured here"
                if session.calls
                else "bypasses transformers' attention interface, and needs an adapter (docs: add a model family)"
            )
            raise InputError(
                f"{self.name}: {session.calls} attention calls were seen for {self.n_layers} layers; the "
                f"architecture '{self.family.name}' {why}"
            )
