"""Where a model's files are: a folder, the embedded model, or a repository on the hub."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dualscope.core.errors import InputError

EMBEDDED = "embedded"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Source:
    """A model as the user named it, and how to reach its files.

    ``folder`` is set for local models; otherwise ``repository`` (with ``revision``) names one on the hub.
    """

    name: str
    folder: Path | None = None
    repository: str | None = None
    revision: str | None = None
    offline: bool = False

    @property
    def location(self) -> str:
        """What transformers' ``from_pretrained`` takes."""
        return str(self.folder) if self.folder is not None else str(self.repository)

    def file(self, filename: str) -> Path | None:
        """The path of one of the model's files, fetched if need be; None where the model has no such file."""
        if self.folder is not None:
            path = self.folder / filename
            return path if path.is_file() else None
        from huggingface_hub import errors, hf_hub_download

        try:
            return Path(
                hf_hub_download(
                    str(self.repository), filename, revision=self.revision, local_files_only=self.offline
                )
            )
        except errors.LocalEntryNotFoundError as error:
            if self.offline or self._is_cached():
                return None
            raise InputError(
                f"model '{self.name}': the hub cannot be reached and {filename} is not in the local cache; "
                "give the folder of a downloaded model, or try again with a connection"
            ) from error
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

    def _is_cached(self) -> bool:
        """Whether the hub's answer for this model is known locally (then a missing file is a fact)."""
        from huggingface_hub import try_to_load_from_cache

        return isinstance(
            try_to_load_from_cache(str(self.repository), "config.json", revision=self.revision), str
        )

    def commit(self) -> str | None:
        """The commit of the hub's repository that the files are of; None for a folder."""
        config = self.file("config.json") if self.folder is None else None
        snapshot = config.parent if config is not None else None
        return (
            snapshot.name if snapshot is not None and snapshot.parent.name == "snapshots" else self.revision
        )

    def weights(self) -> list[Path]:
        """The safetensors files; an explanation where there are none."""
        whole = self.file("model.safetensors")
        if whole is not None:
            return [whole]
        index = self.file("model.safetensors.index.json")
        if index is not None:
            try:
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(
                    f"model '{self.name}': {index.name} is damaged; copy the folder again"
                ) from None
            shards = {name: self.file(name) for name in names}
            missing = [name for name, path in shards.items() if path is None]
            if missing:
                raise InputError(
                    f"model '{self.name}': {index.name} names {', '.join(missing)}, which "
                    f"{'is' if len(missing) == 1 else 'are'} missing; copy the folder again"
                )
            return [path for path in shards.values() if path is not None]
        if any(self.file(name) is not None for name in PICKLED):
            raise InputError(
                f"model '{self.name}' has pickled weights only ({PICKLED[0]}), which can run code when "
                f"loaded; convert them first: dualscope convert {self.name} OUT, then use --model OUT"
            )
        where = "in the local cache (offline)" if self.offline and self.folder is None else "there"
        raise InputError(f"model '{self.name}' has no model.safetensors {where}: {self.location}")


def find(name: str, offline: bool = False) -> Source:
    """What a user's ``--model`` means: "embedded", a folder, or a hub name with an optional @revision.

    >>> find("EleutherAI/pythia-70m@step3000").revision
    'step3000'
    >>> find("./nowhere/model")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: no such folder: ./nowhere/model
    """
    if name == EMBEDDED:
        return Source(name, folder=Path(str(files("dualscope.models") / EMBEDDED)))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Source(name, folder=folder)
    if folder.is_file():
        raise InputError(f"'{name}' is a file; give the folder that holds config.json and model.safetensors")
    repository, _, revision = name.partition("@")
    if name.startswith((".", "~", "/")) or repository.count("/") > 1 or not repository:
        raise InputError(f"no such folder: {name}")
    return Source(name, repository=repository, revision=revision or None, offline=offline)
