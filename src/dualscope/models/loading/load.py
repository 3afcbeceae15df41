"""From a name to a model that runs: every way it can fail is said in words before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.spec import adapted_name
from dualscope.core.untrusted_files import json_of, reading, reason
from dualscope.core.words import AdapterMode
from dualscope.models.architecture.families import family_of, max_positions
from dualscope.models.loading import model_variants as variants
from dualscope.models.loading.adapter import adapted, adapter_files
from dualscope.models.loading.automatic_precision import automatic_dtype
from dualscope.models.loading.device_and_precision import dtype_of, name_of, resolve_all, total_memory
from dualscope.models.loading.model_variants import Draws
from dualscope.models.loading.source import TOKENIZER, ModelSource, find, weights_header
from dualscope.models.reading.memory import in_words, weight_bytes

if TYPE_CHECKING:
    from dualscope.models.model import Model


# Which device each part of a model goes to.


def placement(
    name: str, empty: Any, dtype: torch.dtype, places: Sequence[torch.device], automatic: bool
) -> dict[str, Any]:
    """Where the weights of a model (given on the meta device) go, once it is known that they fit: keywords for
    ``from_pretrained``.

    Never the disk, and the CPU only where it was named: weights that come and go cannot be trained.
    """
    need = weight_bytes(empty, dtype)
    room = sum(total_memory(place) for place in places)
    if need < 0.9 * room:
        return {"device_map": {"": places[0]} if len(places) == 1 else split(empty, places)}
    if automatic and places[0].type == "cuda":
        every = {i: total_memory(torch.device("cuda", i)) for i in range(torch.cuda.device_count())}
        room = sum(every.values())
        if len(every) > 1 and need < 0.8 * room:
            return {"device_map": "auto", "max_memory": {i: int(0.85 * size) for i, size in every.items()}}
    named = ", ".join(map(str, places))
    raise InputError(
        f"model '{name}' needs {in_words(need)} for its {name_of(dtype)} weights, and '{named}' has "
        f"{in_words(room)} in all; use --dtype bfloat16, another --device, several (cuda:0,cuda:1), or a smaller model"
    )


def split(hf: Any, places: Sequence[torch.device]) -> dict[str, torch.device]:
    """A model's blocks in equal shares over the devices, in order; what comes before them on the first, what comes
    after them on the last. An unembedding that is the embedding stays with it.
    """
    family = family_of(hf)
    count = len(hf.get_submodule(family.blocks))
    tied = hf.get_input_embeddings().weight is hf.get_output_embeddings().weight
    found: dict[str, torch.device] = {}

    def place(path: str, module: nn.Module) -> None:
        if path == family.blocks:
            found.update({f"{path}.{i}": places[i * len(places) // count] for i in range(count)})
        elif not path or f"{family.blocks}.".startswith(f"{path}."):
            for name, child in module.named_children():
                place(f"{path}.{name}" if path else name, child)
        else:
            head = module is hf.get_output_embeddings() and not tied
            found[path] = places[-1] if head or path in family.final else places[0]

    place("", hf)
    return found


def load(
    name: str,
    device: str = "auto",
    dtype: str = "float32",  # or "auto": see dualscope.models.loading.automatic_precision
    variant: str = "trained",
    init_seed: int = 0,
    offline: bool = False,
    adapter: str | None = None,
    adapter_mode: AdapterMode = "merged",
    draws: Draws | None = None,
) -> Model:
    """A causal language model and its tokenizer: safetensors only, no remote code, in eval mode.

    ``name`` is "embedded", a folder, a GGUF file, or a name on the hub with an optional ``@revision``; ``device`` one
    device, or several, over which the layers are split (``cuda:0,cuda:1``); ``adapter`` the folder of a LoRA adapter,
    which is ``merged`` into the weights or stays ``active`` beside them; ``draws`` remembers what variants drew.
    """
    from dualscope.models.model import Model

    variants.check(variant)
    dtype = automatic_dtype(name, device, offline) if dtype == "auto" else dtype
    weights_dtype, places = dtype_of(dtype), resolve_all(device)
    if dtype == "tf32" and (wrong := [place for place in places if place.type != "cuda"]):
        raise InputError(f"dtype 'tf32' needs a CUDA device, not '{wrong[0].type}'; use float32")
    if dtype == "float64" and any(place.type == "mps" for place in places):
        raise InputError("dtype 'float64' does not exist on MPS; use --device cpu or float32")
    source = find(name, offline)
    written = source.config()
    config = _config(source, written)
    _check_architecture(source, config)
    source.texts()
    files = source.weights()
    with network.offline():  # what is needed is here now, and nothing that the files name is fetched
        _check_header(source, config, files)
        where = placement(name, _empty(source, config), weights_dtype, places, automatic=device == "auto")
        tokenizer = _tokenizer(source, written.parent)
        hf = _module(source, written.parent, config, weights_dtype, where)
    if weights_dtype == torch.float64 and hasattr(hf, "set_experts_implementation"):
        hf.set_experts_implementation("eager")  # the grouped product of experts knows no float64
    if getattr(config, "dualscope_attention", None) is not None:
        from dualscope.models.attention_kinds import restore

        restore(hf, files)
    if adapter is not None:
        if variant == "shuffled" and adapter_mode == "active":
            raise InputError(
                f"adapter '{adapter}': the variant 'shuffled' mixes the weights that it is merged into; leave "
                "out one of --variant shuffled and --adapter-mode active"
            )
        # Weights that are drawn anew know nothing of it either way.
        mode = "merged" if variant in variants.DRAWN else adapter_mode
        hf = adapted(hf, adapter, name, mode)
    variants.apply(hf, variant, init_seed, draws)
    return Model(
        hf.eval(),
        tokenizer,
        name=name if adapter is None else adapted_name(name, adapter, adapter_mode),
        revision=source.commit(),
        variant=variant,
        init_seed=init_seed,
        files=[*source.origin(), *(adapter_files(adapter) if adapter is not None else [])],
        precision=dtype,
    )


def load_tokenizer(name: str, offline: bool = False) -> tuple[Any, int]:
    """A model's tokenizer and how many tokens the model can see, without its weights."""
    source = find(name, offline)
    written = source.config()
    config = _config(source, written)
    source.texts()
    with network.offline():
        tokenizer = _tokenizer(source, written.parent)
    return tokenizer, max_positions(config.get_text_config(), tokenizer)


def _config(source: ModelSource, path: Path) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    written = json_of(path, "copy the folder again")
    if (path.parent / "adapter_config.json").exists():
        raise InputError(
            f"model '{source.name}': {path.parent} holds an adapter (adapter_config.json) beside the model; give the "
            "model alone, or merge the adapter into it"
        )
    why = " without code from the model's author, which is never run here" if "auto_map" in written else ""
    with reading(f"model '{source.name}': its config.json{why}"), network.offline():
        config = AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
        kind = config.model_type
        if hasattr(config, "transformers_weights"):
            del config.transformers_weights  # which files are read is never the configuration's choice
    encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or encoder:
        raise InputError(
            f"model '{source.name}' ({kind}) is not a causal language model: only decoders that predict the "
            "next token, such as gpt2, llama or xglm, can be measured"
        )
    return config


def _check_architecture(source: ModelSource, config: Any) -> None:
    """What no entry of the family table could describe is refused before its weights are fetched."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from dualscope.models.architecture.structure import refuse

    try:
        refuse(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config.model_type, config.get_text_config())
    except InputError as error:
        raise InputError(f"model '{source.name}': {error}") from error


def _check_header(source: ModelSource, config: Any, files: list[Path]) -> None:
    """What the files' headers already show: layers that cannot be there, weights that are no floating numbers."""
    header = weights_header(files, source.name)
    inner = config.get_text_config()
    for field in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        value = getattr(inner, field, None)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"model '{source.name}': its config.json: {field}: a number above 0, not {value!r}")
    if inner.num_hidden_layers > len(header):
        raise InputError(
            f"model '{source.name}': its config.json asks for {inner.num_hidden_layers} layers, and its files hold "
            f"{len(header)} tensors; they are not of the same model"
        )
    for name, (_, dtype) in header.items():
        if name.endswith("weight") and dtype not in ("F64", "F32", "F16", "BF16"):
            raise InputError(
                f"model '{source.name}': '{name}' is kept as {dtype}; only plain floating-point weights (F32, BF16, "
                "F16, F64) are measured, not quantised ones"
            )


def _attention(config: Any) -> str:
    """Named by us, so that a configuration cannot ask for a kernel from a hub: torch's own, or the plain one."""
    from transformers import AutoModelForCausalLM

    kind = AutoModelForCausalLM._model_mapping[type(config)]
    return "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"


def _tokenizer(source: ModelSource, folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not any(source.file(name) for name in TOKENIZER):
        raise InputError(
            f"model '{source.name}' has no tokenizer (none of {', '.join(TOKENIZER[:8])}, ...); copy its files "
            "beside config.json"
        )
    with reading(f"model '{source.name}': its tokenizer"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _empty(source: ModelSource, config: Any) -> Any:
    """The model without its weights, on the meta device."""
    from transformers import AutoModelForCausalLM

    with reading(f"model '{source.name}': its config.json"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=_attention(config))


def _module(source: ModelSource, folder: Path, config: Any, dtype: torch.dtype, where: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with _quietly():
            # Two values, because of output_loading_info; its type says one.
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation=_attention(config),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # an error of ours, below, which says which
                **where,
            )
            hf, report = loaded
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"model '{source.name}' does not fit beside what else is on the device; free it, or use "
            f"another --device or a smaller --dtype ({reason(error)})"
        ) from error
    except Exception as error:  # transformers raises whatever the files make it stumble over
        raise InputError(f"model '{source.name}' cannot be loaded ({reason(error)})") from error
    # transformers would fill all these with random numbers and go on.
    for name, found, expected in sorted(report["mismatched_keys"]):
        raise InputError(
            f"model '{source.name}': '{name}' is {list(found)} in its files, and its config.json makes it "
            f"{list(expected)}; they are not of the same model"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(
            f"model '{source.name}': {len(missing)} weights are not in its files ({', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}); the files are incomplete, or of another architecture"
        )
    for name, weight in hf.named_parameters():
        bad = weight.numel() - int(weight.isfinite().sum())
        if bad:
            raise InputError(
                f"model '{source.name}': {bad} of {weight.numel()} numbers of '{name}' are not finite in "
                f"{name_of(dtype)}; the files are damaged, or their numbers too large for this --dtype"
            )
    return hf


@contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' progress bars and load report: what matters of them is an error of ours."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
