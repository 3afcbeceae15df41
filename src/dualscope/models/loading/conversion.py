"""Pickle-only checkpoints and GGUF files to safetensors.

A pickle can run code when it is read, so it is read by torch's restricted reader (``weights_only``), in a
process of its own that sees no more than the files it converts. Nothing else here opens a pickle.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dualscope.core.errors import InputError
from dualscope.core.folder import share
from dualscope.models.loading import gguf_convert
from dualscope.models.loading.source import PICKLED, ModelSource, find, shard_names


def convert(name: str, out: Path, offline: bool = False) -> list[Path]:
    """Write ``out``/config.json, the tokenizer's files and safetensors weights; returns the weights' paths.

    A checkpoint in several pickles becomes as many safetensors files with an index. Tensors that share their
    storage (tied embeddings) are written once: transformers ties them again when it loads the model.
    """
    source = find(name, offline)
    pickles = _pickles(source) if source.gguf is None else []
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"'{out}' exists and is not an empty folder; give a new one")
    if source.gguf is None and source.file("config.json") is None:
        raise InputError(f"model '{name}' has no config.json: it is not a transformers model")
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=".convert-", dir=out)
    except OSError as error:
        raise InputError(f"'{out}' cannot be made ({error.strerror})") from None
    try:
        with aside as folder:
            if source.gguf is not None:
                written = gguf_convert.write(source.gguf, Path(folder))
            else:
                written = _write(source, pickles, Path(folder))
            for file in Path(folder).iterdir():
                file.rename(out / file.name)
    except BaseException:
        if new and not any(out.iterdir()):
            out.rmdir()  # as it was, so that the same command can be given again
        raise
    return [out / name for name in written]


def _write(source: ModelSource, pickles: list[Path], folder: Path) -> list[str]:
    """All files of the converted model; returns the names of its weights."""
    for path in (*source.texts(), source.file("generation_config.json")):
        if path is not None:
            shutil.copyfile(path, folder / path.name)
    several = len(pickles) > 1
    written = []
    for i, pickle in enumerate(pickles, 1):
        target = folder / (f"model-{i:05}-of-{len(pickles):05}.safetensors" if several else "model.safetensors")
        _convert_one(source.name, pickle, target)
        share(target)
        written.append(target)
    if several:
        _write_index(written, folder)
    return [target.name for target in written]


def _pickles(source: ModelSource) -> list[Path]:
    whole = source.file(PICKLED[0])
    if whole is not None:
        return [whole]
    index = source.file(PICKLED[1])
    if index is None:
        raise InputError(f"model '{source.name}' has no {PICKLED[0]}: there is nothing to convert")
    paths = []
    for shard in shard_names(index, source.name, ".bin"):
        path = source.file(shard)
        if path is None:
            raise InputError(f"model '{source.name}': {PICKLED[1]} names {shard}, which is missing")
        paths.append(path)
    return paths


def _convert_one(name: str, pickle: Path, target: Path) -> None:
    # -I: an isolated interpreter, which looks for modules neither in the working folder nor where the
    # environment points.
    done = subprocess.run(
        [sys.executable, "-I", str(Path(__file__).with_name("unpickle.py")), str(pickle), str(target)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise InputError(f"model '{name}': {pickle.name} cannot be read safely as a table of tensors: {reason}")


def _write_index(shards: list[Path], out: Path) -> None:
    from safetensors import safe_open

    weight_map: dict[str, str] = {}
    size = 0
    for shard in shards:
        size += shard.stat().st_size
        with safe_open(str(shard), "pt") as file:
            weight_map |= dict.fromkeys(file.keys(), shard.name)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
