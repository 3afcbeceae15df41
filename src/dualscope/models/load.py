"""From a name to a model that runs: every way it can fail is said in words before anything is computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dualscope.core.errors import InputError
from dualscope.models import hardware, variants
from dualscope.models.capture.positions import max_positions
from dualscope.models.precision import dtype_of, name_of
from dualscope.models.reading.memory import in_words, weight_bytes
from dualscope.models.source import Source, find

if TYPE_CHECKING:
    from dualscope.models.model import Model


def load(
    name: str,
    device: str = "auto",
    dtype: str = "float32",
    variant: str = "trained",
    init_seed: int = 0,
    offline: bool = False,
) -> "Model":
    """A causal language model and its tokenizer: safetensors only, no remote code, in eval mode.

    ``name`` is "embedded", a folder, or a name on the hub with an optional ``@revision``.
    """
    from dualscope.models.model import Model

    variants.check(variant)
    weights_dtype, place = dtype_of(dtype), hardware.resolve(device)
    if dtype == "tf32" and place.type != "cuda":
        raise InputError(f"dtype 'tf32' needs a CUDA device, not '{place.type}'; use float32")
    if dtype == "float64" and place.type == "mps":
        raise InputError("dtype 'float64' does not exist on MPS; use --device cpu or float32")
    source = find(name, offline)
    config = _config(source)
    files = source.weights()
    placement = _placement(source, config, weights_dtype, place, automatic=device == "auto")
    tokenizer = _tokenizer(source)
    hf = _module(source, config, weights_dtype, placement)
    if weights_dtype == torch.float64 and hasattr(hf, "set_experts_implementation"):
        hf.set_experts_implementation("eager")  # the grouped product of experts knows no float64
    if getattr(config, "dualscope_attention", None) is not None:
        from dualscope.models.attention_kinds import restore

        restore(hf, files[0].parent)
    variants.apply(hf, variant, init_seed)
    return Model(
        hf.eval(),
        tokenizer,
        name=name,
        revision=source.commit(),
        variant=variant,
        init_seed=init_seed,
        files=files,
        precision=dtype,
    )


def load_tokenizer(name: str, offline: bool = False) -> tuple[Any, int]:
    """A model's tokenizer and how many tokens the model can see, without its weights."""
    source = find(name, offline)
    config, tokenizer = _config(source), _tokenizer(source)
    return tokenizer, max_positions(config.get_text_config(), tokenizer)


def _config(source: Source) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if source.file("config.json") is None:
        if source.folder is not None:
            raise InputError(f"model '{source.name}': there is no config.json in {source.folder}")
        raise InputError(
            f"model '{source.name}' is not in the local cache; fetch it without --offline, or give a folder"
            if source.offline
            else f"model '{source.name}' has no config.json on the hub: it is not a transformers model"
        )
    try:
        config = AutoConfig.from_pretrained(
            source.location,
            revision=source.revision,
            local_files_only=source.offline,
            trust_remote_code=False,
        )
    except (ValueError, OSError, KeyError) as error:
        path = source.file("config.json")
        foreign = path is not None and "auto_map" in path.read_text(encoding="utf-8", errors="replace")
        why = " without code from the model's author, which is never run here" if foreign else ""
        raise InputError(
            f"model '{source.name}': transformers cannot read its config.json{why} ({_first_line(error)})"
        ) from error
    kind = config.model_type
    encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or encoder:
        raise InputError(
            f"model '{source.name}' ({kind}) is not a causal language model: only decoders that predict the "
            "next token, such as gpt2, llama or xglm, can be measured"
        )
    return config


def _tokenizer(source: Source) -> Any:
    from transformers import AutoTokenizer

    known = (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "tokenizer.model",
        "sentencepiece.bpe.model",
    )
    if not any(source.file(name) for name in known):
        raise InputError(
            f"model '{source.name}' has no tokenizer (none of {', '.join(known)}); copy its files beside "
            "config.json"
        )
    try:
        return AutoTokenizer.from_pretrained(
            source.location,
            revision=source.revision,
            local_files_only=source.offline,
            trust_remote_code=False,
        )
    except (ValueError, OSError, KeyError, ImportError, TypeError) as error:
        raise InputError(
            f"model '{source.name}': its tokenizer cannot be read ({_first_line(error)})"
        ) from error


def _placement(
    source: Source, config: Any, dtype: torch.dtype, place: torch.device, automatic: bool
) -> dict[str, Any]:
    """Where the weights go, once it is known that they fit: keywords for ``from_pretrained``."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        need = weight_bytes(AutoModelForCausalLM.from_config(config), dtype)
    room = hardware.total_memory(place)
    if need < 0.9 * room:
        return {"device_map": {"": place}}
    several = torch.cuda.device_count() if automatic and place.type == "cuda" else 1
    if several > 1:
        everywhere = {i: hardware.total_memory(torch.device("cuda", i)) for i in range(several)}
        if need < 0.8 * sum(everywhere.values()):
            # Never the CPU or the disk: weights that come and go cannot be trained.
            return {
                "device_map": "auto",
                "max_memory": {i: int(0.85 * size) for i, size in everywhere.items()},
            }
        room = sum(everywhere.values())
    raise InputError(
        f"model '{source.name}' needs {in_words(need)} for its {name_of(dtype)} weights, and '{place}' has "
        f"{in_words(room)} in all; use --dtype bfloat16, another --device, or a smaller model"
    )


def _module(source: Source, config: Any, dtype: torch.dtype, placement: dict[str, Any]) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with _quietly():
            hf, report = AutoModelForCausalLM.from_pretrained(
                source.location,
                config=config,
                revision=source.revision,
                local_files_only=source.offline,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # an error of ours, below, which says which
                **placement,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise InputError(
                f"model '{source.name}' does not fit beside what else is on the device; free it, or use "
                f"another --device or a smaller --dtype ({_first_line(error)})"
            ) from error
        raise InputError(f"model '{source.name}' cannot be loaded ({_first_line(error)})") from error
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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
