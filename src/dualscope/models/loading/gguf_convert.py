"""GGUF files made into safetensors, once: transformers reads and dequantises them, and a cache keeps what it made.

The cache is a folder of model folders, each named after the sha256 of its file's content. A model folder appears whole
or not at all: it is written aside and renamed. It notes the sizes of its files, and one that has others is made anew.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.folder import share
from dualscope.core.untrusted_files import json_of, reading, reason
from dualscope.models.loading.digest import cache_folder, remembered
from dualscope.models.loading.gguf_file import GgufHeader, read_header

FORMAT = 1  # counted up when the same file is to become other numbers
NOTE = "conversion.json"
SPARE_ITEMS = 2**26  # numbers that a model may hold beside those of its file: masks, tables of positions


def converted(path: Path) -> Path:
    """The folder of a GGUF file's model in safetensors, made now where the cache has none."""
    folder = kept_at(path)
    if is_whole(folder):
        return folder
    header = read_header(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock")):
            if not is_whole(folder):  # another process made it meanwhile
                _fill(path, header, folder)
    except OSError as error:
        raise InputError(
            f"model file '{path}': its safetensors cannot be kept in {folder.parent} ({reason(error)}); set "
            "XDG_CACHE_HOME to a folder with room, or convert it yourself with dualscope convert FILE OUT"
        ) from error
    return folder


def kept_at(path: Path) -> Path:
    """Where the cache keeps the safetensors of a file."""
    return cache_folder() / "gguf" / f"{remembered(path)}-{FORMAT}"


def is_whole(folder: Path) -> bool:
    """Whether every file that a conversion wrote is there in its size."""
    try:
        sizes = json_of(folder / NOTE)["sizes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (InputError, OSError, KeyError, AttributeError, TypeError):
        return False


def write(path: Path, folder: Path) -> list[str]:
    """Configuration, tokenizer and weights of a GGUF file, as transformers reads it; returns the weights' names."""
    return _write(path, read_header(path), folder)


def _fill(path: Path, header: GgufHeader, folder: Path) -> None:
    for left in folder.parent.glob(f".{folder.name}-*"):  # of killed processes: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    if folder.exists():  # damaged, else this were not called
        shutil.rmtree(folder)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(path, header, aside)
        made_of = {"file": path.name, "transformers": version("transformers"), "gguf": version("gguf")}
        sizes = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
        (aside / NOTE).write_text(json.dumps({**made_of, "sizes": sizes}, indent=2) + "\n")
        for file in aside.iterdir():
            with file.open("rb") as stream:  # on the disk before the folder has its name
                os.fsync(stream.fileno())
        aside.chmod(0o777 & ~_mask())
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _write(path: Path, header: GgufHeader, folder: Path) -> list[str]:
    needed, free = 4 * header.parameters, shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"model file '{path}': its weights take {needed / 2**30:.1f} GB in float32, and {folder.parent} has room "
            f"for {free / 2**30:.1f} GB; make room there, or set XDG_CACHE_HOME to another folder"
        )
    # Alone in a folder and under a plain name: transformers would read other files beside it, and asks for the suffix.
    with tempfile.TemporaryDirectory() as scratch, network.offline(), _quietly():
        (Path(scratch) / "model.gguf").symlink_to(path.resolve())
        with reading(f"model file '{path}' (architecture {header.architecture})"):
            _save(Path(scratch), header, folder)
    for file in folder.iterdir():
        share(file)
    return sorted(file.name for file in folder.glob("*.safetensors"))


def _save(scratch: Path, header: GgufHeader, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    source: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(scratch, **source)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{config.model_type} is not a causal language model")
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config)
    tensors = [*plain.parameters(), *plain.buffers()]
    if sum(tensor.numel() for tensor in tensors) > 2 * header.parameters + SPARE_ITEMS:
        raise ValueError("its fields describe a larger model than its tensors are; they are not of the same model")
    tokenizer = AutoTokenizer.from_pretrained(scratch, **source)
    if header.fields.get("tokenizer.ggml.add_bos_token") is False:
        tokenizer.bos_token = None  # the file names one, and says that no text begins with it
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        scratch, **source, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
    )
    hf, report = loaded
    weights = hf.state_dict()
    _check_weights(weights, plain.state_dict(), report)
    # transformers refuses to save a model that it knows to have been quantised; its numbers are plain ones now.
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _check_weights(found: Mapping[str, Any], expected: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """transformers would fill with random numbers what a file lacks, take what has another shape, and go on."""
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{len(missing)} weights are not in it: {', '.join(missing[:3])}")
    for name, weight in found.items():
        if name in expected and weight.shape != expected[name].shape:
            raise ValueError(f"'{name}' is {list(weight.shape)}, and its fields make it {list(expected[name].shape)}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the lock of one that dies is free."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the bars of transformers and tqdm where there is no terminal."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
