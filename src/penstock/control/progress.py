"""How far the parallel copy of a table is: watched by the process that copies, noted in the catalog for all.

::

    workers: a note in a folder per finished range  ─┐
    Postgres: what running COPY sessions have sent   ─┴─▶ the more of both, by range ─▶ sum ─▶ catalog, every second

A range counts once, however often it is begun, and never for less than it did before. Where Postgres cannot be asked
right now, finished ranges are counted only.
"""

from __future__ import annotations

import glob
import shutil
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from penstock.catalog.progress import CopyProgress
from penstock.errors import PenstockError
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy import Tally, copying_sessions
from penstock.tables.initial_copy import finished_ranges

__all__ = ["CopyWatch"]

_LOOK_SECONDS = 1.0
_PREFIX = ".copying-{}."


class CopyWatch:
    """Watches the copy of one table into `folder` while it is entered, in a thread of its own."""

    def __init__(
        self, conninfo: str, table: CapturedTable, total_bytes: int, folder: Path, note: Callable[[CopyProgress], None]
    ) -> None:
        self._conninfo = conninfo
        self._table = table
        self._total_bytes = total_bytes
        self._note = note
        _remove_left_over(folder)
        self.notes = folder.with_name(_PREFIX.format(folder.name) + uuid.uuid4().hex[:12])
        """Where workers leave their notes, and files until all are there."""
        self.notes.mkdir(parents=True)
        self._ranges: dict[int, Tally] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-watch-{table.name}", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and take the notes away."""
        self._done.set()
        self._thread.join()
        shutil.rmtree(self.notes, ignore_errors=True)

    def _watch(self) -> None:
        while not self._done.is_set():
            with suppress(PenstockError, psycopg.Error), connect(self._conninfo, "penstock progress") as connection:
                while not self._done.is_set():
                    self._look(copying_sessions(connection, self._table))
            self._look({})

    def _look(self, running: dict[int, Tally]) -> None:
        for found in (running, finished_ranges(self.notes)):
            for number, tally in found.items():
                known = self._ranges.get(number, Tally())
                self._ranges[number] = Tally(max(known.rows, tally.rows), max(known.bytes, tally.bytes))
        rows = sum(tally.rows for tally in self._ranges.values())
        size = sum(tally.bytes for tally in self._ranges.values())
        self._note(CopyProgress(rows, size, self._table.estimated_rows, self._total_bytes))
        self._done.wait(_LOOK_SECONDS)


def _remove_left_over(folder: Path) -> None:
    """Remove what a process left that was killed at its copy; a table without a log has no files, either."""
    for left in folder.parent.glob(_PREFIX.format(glob.escape(folder.name)) + "*"):
        shutil.rmtree(left, ignore_errors=True)
    if not (folder / "_delta_log").exists():
        shutil.rmtree(folder, ignore_errors=True)
