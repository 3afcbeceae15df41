"""Where a model's files are: a folder, the embedded model, a GGUF file, or a repository on the hub.

Every file is asked for by its name, one of those below or one that a checked index names, so that nothing else of a
model's folder is ever read. A model of the hub is brought here first and then read as a folder: only this module
speaks with the hub.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from dualscope.core import network
from dualscope.core.command_hints import called
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import json_of, reason
from dualscope.models.loading.gguf_file import gguf_in, is_gguf

LARGEST_EPSILON = 1.0


def check_numbers(config: Mapping[str, Any], file: object) -> None:
    """Norms' epsilons are small and not below 0; factors by which positions are scaled are above 0.

    >>> check_numbers({"layer_norm_epsilon": float("inf")}, "config.json")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: config.json: field 'layer_norm_epsilon' is inf; a number from 0 to 1 is expected
    """
    for name, value in _numbers(config, ""):
        last = name.rpartition(".")[2]
        if last.endswith(("epsilon", "_eps")) and not 0 <= value <= LARGEST_EPSILON:
            raise InputError(f"{file}: field '{name}' is {value}; a number from 0 to 1 is expected")
        if "rope" in name and last == "factor" and not 0 < value < math.inf:
            raise InputError(f"{file}: field '{name}' is {value}; a number above 0 is expected")


def _numbers(config: Mapping[str, Any], above: str) -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{above}{name}", value


EMBEDDED = "embedded"
CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "source.spm",
    "target.spm",
    "bpe.codes",
    "tekken.json",
    "vocab.bpe",
    "encoder.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Every file from which transformers' tokenizers of language models are made."""
COMMIT = re.compile("[0-9a-f]{40}")
NO_REVISION = re.compile(r"[\s~^:?*\[\\{}@]|\.\.")  # what no name of git's has


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it, and how to reach its files.

    ``folder`` is set for local models, ``gguf`` for those in one GGUF file, which are read as the folder that they are
    converted into; otherwise ``repository`` (with ``revision``) names one on the hub.
    """

    name: str
    folder: Path | None = None
    gguf: Path | None = None
    repository: str | None = None
    revision: str | None = None
    offline: bool = False

    @property
    def location(self) -> str:
        """What a message calls the place."""
        return str(self.folder or self.gguf or self.repository)

    @property
    def is_local(self) -> bool:
        return self.repository is None

    @cached_property
    def _here(self) -> Path | None:
        """The folder of a local model; a GGUF file is converted now, where that was not done before."""
        if self.gguf is None:
            return self.folder
        from dualscope.models.loading.gguf_convert import converted

        return converted(self.gguf)

    def is_converted(self) -> bool:
        """Whether the files can be read without converting anything first."""
        if self.gguf is None:
            return True
        from dualscope.models.loading.gguf_convert import is_whole, kept_at

        return is_whole(kept_at(self.gguf))

    def file(self, filename: str) -> Path | None:
        """The path of one of the model's files, fetched if need be; None where the model has no such file."""
        if self.is_local:
            assert self._here is not None
            path = self._here / filename
            try:
                return path if path.is_file() else None
            except OSError as error:
                raise InputError(f"model '{self.name}': {path} cannot be read ({reason(error)})") from None
        if filename == CONFIG:
            return self._config
        return self._fetch(filename, self.commit()) if self._config is not None else None

    @cached_property
    def _config(self) -> Path | None:
        """config.json says at which commit a branch is now; all other files are taken from that commit."""
        return self._fetch(CONFIG, self.revision)

    @cached_property
    def _cut_off(self) -> bool:
        """Whether nothing can be fetched: asked for, or found out at once rather than by minutes of retries."""
        return self.offline or not network.hub_answers()

    def _unreachable(self, filename: str) -> str:
        return (
            f"model '{self.name}': the hub cannot be reached and {filename} is not in the local cache; "
            "give the folder of a downloaded model, or try again with a connection"
        )

    def config(self) -> Path:
        """config.json, without which there is no model: an explanation where there is none."""
        path = self.file(CONFIG)
        if path is not None:
            self._check_config(path)
            return path
        if self.folder is not None:
            raise InputError(f"model '{self.name}': there is no config.json in {self.folder}")
        raise InputError(
            f"model '{self.name}' is not in the local cache; fetch it without --offline, or give a folder"
            if self.offline
            else f"model '{self.name}' has no config.json on the hub: it is not a transformers model"
        )

    def _check_config(self, path: Path) -> None:
        """Before any weights are fetched: a change of them would have to pass through what they were rounded to."""
        config = json_of(path, "copy the folder again")
        check_numbers(config, path)
        found = config.get("quantization_config")
        if found is not None:
            how = found.get("quant_method") if isinstance(found, dict) else None
            raise InputError(
                f"model '{self.name}': its weights are quantised{f' by {how}' if isinstance(how, str) else ''} "
                f"(quantization_config in {path}); what works is the checkpoint that it was made from, with weights in "
                "bfloat16, float16 or float32 (--dtype bfloat16 needs the least memory)"
            )

    def _fetch(self, filename: str, revision: str | None) -> Path | None:
        import huggingface_hub
        from huggingface_hub import errors

        if revision is not None and COMMIT.fullmatch(revision):  # a commit's files never change
            known = huggingface_hub.try_to_load_from_cache(str(self.repository), filename, revision=revision)
            if known is not None:
                return Path(known) if isinstance(known, str) else None
        try:
            with network.offline(self._cut_off):
                network.plain_requests()
                return Path(
                    huggingface_hub.hf_hub_download(
                        str(self.repository), filename, revision=revision, local_files_only=self._cut_off
                    )
                )
        except errors.LocalEntryNotFoundError as error:
            if self.offline or (filename != CONFIG and self._config is not None):
                return None
            raise InputError(self._unreachable(filename)) from error
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError as error:
            raise InputError(
                f"model '{self.name}' is gated: accept its terms on its page and run `hf auth login`"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise InputError(f"model '{self.repository}' has no revision '{self.revision}'") from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(f"no model '{self.repository}' on the hub, and no such folder") from error
        except errors.HFValidationError as error:
            raise InputError(
                f"'{self.name}' is neither a folder nor a name on the hub (owner/model[@revision])"
            ) from error
        except Exception as error:  # the hub's library raises what its transport raises
            raise InputError(f"model '{self.name}': {filename} cannot be fetched ({reason(error)})") from error

    def commit(self) -> str | None:
        """The commit of the hub's repository that the files are of; None for a folder."""
        if self.is_local or self._config is None:
            return self.revision
        snapshot = self._config.parent
        return snapshot.name if snapshot.parent.name == "snapshots" else self.revision

    def texts(self) -> list[Path]:
        """Configuration and tokenizer: what beside the weights determines what a model computes."""
        return [path for path in map(self.file, (CONFIG, *TOKENIZER)) if path is not None]

    def weights(self) -> list[Path]:
        """The safetensors files; an explanation where there are none."""
        whole = self.file(WHOLE)
        if whole is not None:
            return [whole]
        index = self.file(INDEX)
        if index is not None:
            return self._shards(index)
        if any(self.file(name) is not None for name in PICKLED):
            raise InputError(
                f"model '{self.name}' has pickled weights only ({PICKLED[0]}), which can run code when "
                f"loaded; convert them first: {called('convert', self.name, 'OUT')}, then use --model OUT"
            )
        where = "in the local cache (offline)" if self.offline and not self.is_local else "there"
        raise InputError(f"model '{self.name}' has no model.safetensors {where}: {self.location}")

    def origin(self) -> list[Path]:
        """The files whose content says which model it is: the weights, or the GGUF file that they were made from."""
        return self.weights() if self.gguf is None else [self.gguf]

    def _shards(self, index: Path) -> list[Path]:
        names = shard_names(index, self.name, ".safetensors")
        shards = {name: self.file(name) for name in names}
        missing = [name for name, path in shards.items() if path is None]
        if missing:
            raise InputError(
                f"model '{self.name}': {index.name} names {', '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} missing; copy the folder again"
            )
        return [path for path in shards.values() if path is not None]


def shard_names(index: Path, model: str, suffix: str) -> list[str]:
    """The files that an index names: plain names of one kind, so that all are in the model's own folder."""
    table = json_of(index, "copy the folder again").get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise InputError(f"model '{model}': {index.name} is damaged (no weight_map to files); copy the folder again")
    names = sorted(set(table.values()))
    for name in names:
        if name != os.path.basename(name) or "\\" in name or "\0" in name or name.startswith("."):
            raise InputError(f"model '{model}': {index.name} names {name!r}, which is outside of the model's folder")
        if not name.endswith(suffix):
            raise InputError(
                f"model '{model}': {index.name} names {name!r}, and only {suffix} files are read: others can run "
                "code when loaded"
            )
    return names


def weights_header(shards: Iterable[Path], model: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every tensor, from the files' headers alone."""
    from safetensors import safe_open

    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for shard in shards:
        try:
            with safe_open(str(shard), "numpy") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    part = file.get_slice(name)
                    found[name] = (tuple(part.get_shape()), str(part.get_dtype()))
        except Exception as error:
            raise InputError(
                f"model '{model}': {shard.name} is damaged ({reason(error)}); copy the folder again"
            ) from error
    return found


def find(name: str, offline: bool = False) -> ModelSource:
    """What a user's ``--model`` means: "embedded", a folder, a GGUF file, or a hub name with an optional @revision.

    >>> find("EleutherAI/pythia-70m@step3000").revision
    'step3000'
    >>> find("./nowhere/model")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: no such folder: ./nowhere/model
    """
    if name == EMBEDDED:
        return ModelSource(name, folder=Path(str(files("dualscope.models") / EMBEDDED)))
    if not name.strip():
        raise InputError("an empty name of a model; give embedded, a folder, a GGUF file, or a name on the hub")
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            plain = any((folder / file).exists() for file in (WHOLE, INDEX, *PICKLED))
            alone = None if plain else gguf_in(folder)
            return ModelSource(name, folder=folder) if alone is None else ModelSource(name, gguf=alone)
        if is_gguf(folder):
            return ModelSource(name, gguf=folder)
        if folder.exists():
            raise InputError(
                f"'{name}' is a file, and not one in GGUF; give the folder that holds config.json and "
                "model.safetensors, or a GGUF file"
            )
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, the home of an unknown user
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{name}' is no name of a model ({reason(error)})") from None
    repository, _, revision = name.partition("@")
    if name.startswith((".", "~", "/")) or repository.count("/") > 1 or not repository:
        raise InputError(f"no such folder: {name}")
    if NO_REVISION.search(revision):
        raise InputError(f"model '{name}': '{revision}' is no revision (a branch, a tag or a commit)")
    return ModelSource(name, repository=repository, revision=revision or None, offline=offline)
