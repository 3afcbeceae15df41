"""The cells of a run folder: in files of their own, or packed; read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from dualscope.core.command_hints import called
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.untrusted_files import reason
from dualscope.studies.run_folder.cell_files import (
    Broken,
    is_damage,
    notes_of,
    queries_of,
    responses_of,
    rows_of,
    schema_of,
)
from dualscope.studies.run_folder.packed_cells import Pack

T = TypeVar("T")
MENDED = f"`{called('run')}` computes what is damaged again"
WITH_RESPONSES = "with responses"  # noted beside a cell that has products of responses
WITHOUT_QUERIES = "without queries"  # noted beside a cell that never had a table of them


class Cells:
    """What is stored of every cell."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.known = Pack(folder)
        """What is packed, as it was when we last looked."""

    @property
    def pack(self) -> Pack:
        """What of the run is packed, as it is now."""
        self.known.refresh()
        return self.known

    def stored(self) -> set[str]:
        """The ids of the cells whose rows are here, loose or packed."""
        return self.loose() | self.pack.cells  # in this order: a cell that is being packed is in one of them

    def loose(self) -> set[str]:
        """Those that have files of their own."""
        return {name.removesuffix(".parquet") for name in self.folder.names("cells", ".parquet")}

    def has(self, cell: str) -> bool:
        return self.folder.exists(f"cells/{cell}.parquet") or cell in self.pack

    def every(self) -> set[str]:
        """Every cell; not fewer where an index cannot be read."""
        found = self.stored()
        for broken in self.pack.broken.values():
            raise InputError(f"{self.folder.path(broken.file)}: cannot be read ({broken.why}); {MENDED}")
        return found

    @contextmanager
    def told(self, part: str, cell: str | None = None) -> Iterator[None]:
        """Inside, what cannot be read of a part of the folder, or of a cell there, is said with the file's name."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            name = part if cell is None else self.file(part, cell)
            raise InputError(f"{self.folder.path(name)}: cannot be read ({reason(error)}); {MENDED}") from error

    def read_rows(self, cell: str) -> pa.Table:
        """A cell's rows; errors as they come."""
        return self._from(
            cell, f"cells/{cell}.parquet", lambda data: rows_of(data, cell), lambda: self.known.rows(cell)
        )

    def read_queries(self, cell: str) -> pa.Table:
        return self._from(
            cell, f"queries/{cell}.parquet", lambda data: queries_of(data, cell), lambda: self.known.queries(cell)
        )

    def read_responses(self, cell: str) -> pa.Table:
        return responses_of(self.folder.read(f"responses/{cell}.parquet"), cell)

    def _from(self, cell: str, name: str, loose: Callable[[bytes], T], packed: Callable[[], T]) -> T:
        """From the cell's own file, or where there is none from the pack; it may be packed while we look."""
        if cell in self.known and not self.folder.exists(name):
            return packed()
        try:
            return loose(self.folder.read(name))
        except FileNotFoundError:
            if cell not in self.pack:
                raise
            return packed()

    def unreadable(self, cells: Iterable[str]) -> dict[str, Broken]:
        """Which of these stored cells cannot be read back, and why."""
        broken = {}
        for cell in self.pack.in_order(cells):
            kinds: tuple[tuple[str, Callable[[str], pa.Table]], ...] = (
                ("cells", self.read_rows),
                ("queries", self.read_queries),
                ("responses", self.read_responses),
            )
            for part, read in kinds:
                try:
                    if part == "queries" and WITHOUT_QUERIES in self.notes(cell):
                        continue
                    if part == "responses" and WITH_RESPONSES not in self.notes(cell):
                        continue
                    read(cell)
                except (OSError, pa.ArrowException) as error:
                    broken[cell] = Broken(self.file(part, cell), reason(error), is_damage(error))
                    break
        return broken

    def file(self, part: str, cell: str) -> str:
        """The file that holds a cell's rows or queries, for people."""
        name = f"{part}/{cell}.parquet"
        if cell not in self.known or self.folder.exists(name):
            return name
        return self.known.file("rows" if part == "cells" else "queries", cell)

    def discard(self, cells: Iterable[str]) -> None:
        """Drop cells' rows, so that they are computed again."""
        gone = list(cells)
        self.pack.discard(gone)
        for cell in gone:
            self.folder.remove(f"cells/{cell}.parquet")

    def remove_loose(self, cells: Iterable[str]) -> None:
        """Of cells that are packed, the files of their own. The rows go last: what has rows has queries somewhere."""
        for cell in cells:
            self.folder.remove(f"queries/{cell}.parquet")
            self.folder.remove(f"cells/{cell}.parquet")

    def notes(self, cell: str) -> dict[str, str]:
        """What was noted beside a cell's rows: how many seconds it took, and where."""
        return self._from(
            cell, f"cells/{cell}.parquet", lambda data: notes_of(schema_of(data)), lambda: self.known.entry(cell).notes
        )

    def written(self, cell: str) -> float:
        """When a cell was stored, to tell which of two is newer."""
        if cell in self.known and not self.folder.exists(f"cells/{cell}.parquet"):
            return self.known.entry(cell).written
        return self.folder.written(f"cells/{cell}.parquet")
