"""Rows from a data set on the hub, or from a local folder in the hub's layout, through ``datasets``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.tasks.sources import DataRow
from dualscope.tasks.task_config import HubSource


class HubRows:
    """Data files only: no loading script of a repository is ever run."""

    def __init__(
        self, config: HubSource, folder: Path, labels: tuple[str, ...], named: bool, task: str, offline: bool = False
    ) -> None:
        self.config = config
        self.labels = labels  # the columns that may hold the label
        self.named = named  # give class labels by name, not by number
        self.task = task
        self.offline = offline
        local = folder / config.dataset
        self.local = config.dataset.startswith((".", "/", "~"))
        self.path = str(local.expanduser()) if self.local else config.dataset

    def where(self, split: str) -> str:
        config = f" ({self.config.config})" if self.config.config else ""
        return f"{self.config.dataset}{config}, split {split}"

    def file(self, split: str) -> None:
        return None

    def rows(self, split: str) -> list[DataRow]:
        if self.local and not Path(self.path).is_dir():
            raise InputError(f"task '{self.task}': source.hub.dataset: no such folder: {self.path}")
        with network.offline(self.offline or self.local), _without_bars():
            import datasets

            network.silence()
            network.plain_requests()
            try:
                data = datasets.load_dataset(self.path, self.config.config, split=split, revision=self.config.revision)
            except Exception as error:
                # `datasets` raises whatever its many layers raise (OSError, ValueError, HTTP errors): all of
                # them mean that the data is not at hand, and the person needs to hear what to do.
                raise InputError(self._unreachable(split, error)) from error
        if self.named:
            data = _named(data, self.labels)
        return list(data)

    def _unreachable(self, split: str, error: Exception) -> str:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        place = f"task '{self.task}': {self.where(split)}"
        if self.local:
            return f"{place}: cannot be loaded from {self.path} ({reason})"
        how = (
            f"run once without --offline to fetch it, or put {self.task}/{split}.jsonl (or csv, tsv, "
            f"parquet) in a folder and give it with --data"
        )
        if self.offline:
            return f"{place}: not at hand, and --offline forbids to fetch it ({reason}); {how}"
        how = how.replace("run once without --offline to fetch it", "check the name and the connection")
        return f"{place}: cannot be loaded ({reason}); {how}"


def _named(data: "datasets.Dataset", columns: tuple[str, ...]) -> "datasets.Dataset":  # type: ignore[name-defined]  # noqa: F821
    """Class labels as their names; -1, which stands for no label, stays."""
    import datasets

    column = next((name for name in columns if name in data.column_names), None)
    feature = data.features.get(column)
    if column is None or not isinstance(feature, datasets.ClassLabel):
        return data
    names = [feature.int2str(value) if value >= 0 else "-1" for value in data[column]]
    return data.remove_columns(column).add_column(column, names)


@contextmanager
def _without_bars() -> Iterator[None]:
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
