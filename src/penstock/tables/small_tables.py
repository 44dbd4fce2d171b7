"""Small live tables, read in this process: what a query of the running process reads without any job of Spark.

::

    base files at L ──▶ rows at L ──┐
                                    ├─ live_rows ──▶ rows at T, in Arrow: kept, and what the next query begins with
    log (L, T] ──▶ fold_net ────────┘

Planning a query over a Delta table takes Spark several jobs, which list its files, however small it is; the join with
the tail takes another one. For a table of a few thousand rows this is nearly all of a query's time. Spark gets such a
table as a local relation, whose rows are known at planning time.

The rows are those that Spark would compute from the same base version and the same range of the log: both overlays
have the same model. `rows` returns None for a table that is not small, and whenever it cannot read something, so that
Spark reads it, or reports the error.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.changelog.interface import ChangeLog
from penstock.errors import PenstockError
from penstock.model import TableSchema, image_schema
from penstock.positions import Lsn
from penstock.spark.base_files import BaseFiles, read_base_file
from penstock.tables.arrow.fold import fold_net
from penstock.tables.arrow.overlay import live_rows
from penstock.tables.base_state import State
from penstock.tables.message_tables import message_tables

__all__ = ["SmallTables"]

_ROWS = 50_000
_BYTES = 8 << 20
"""The size of a small table, in its files and in Arrow, and of the log that is folded here."""
_KEPT_BYTES = 64 << 20
"""The size of all rows that are kept."""
_KEPT_TABLES = 500


@dataclass(frozen=True)
class _Rows:
    """A table at a position, read from one version of its base table; without `rows` if it is not small."""

    commit: tuple[int, int]
    columns: pa.Schema
    position: Lsn
    rows: pa.Table | None

    def serves(self, commit: tuple[int, int], columns: pa.Schema, upto: Lsn) -> bool:
        """Return whether these rows, with the log after them, are the table at a position."""
        same = self.commit == commit and self.columns.equals(columns, check_metadata=True)
        return same and (self.rows is None or self.position <= upto)

    @property
    def size(self) -> int:
        """The bytes of the rows."""
        return 0 if self.rows is None else self.rows.nbytes


class SmallTables:
    """Reads small live tables, and keeps their rows; any number of threads may use it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Rows] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> pa.Table | None:
        """Return the table at `upto`, with its columns all nullable; None if Spark is to read it."""
        try:
            if message_tables(log) is not None:
                return None
            known = self._known(path, at, schema.columns, upto)
            if known.rows is None or (rows := _advanced(log, known.rows, known.position, schema, upto)) is None:
                return None
            if rows is not known.rows and _is_small(rows):
                self._keep((str(path), at.version), replace(known, position=upto, rows=rows))
            return _nullable(rows)
        except (PenstockError, OSError, pa.ArrowException):
            return None

    def _known(self, path: Path, at: State, columns: pa.Schema, upto: Lsn) -> _Rows:
        """Return the newest known rows that are not after `upto`."""
        commit, key = _commit(path, at.version), (str(path), at.version)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.serves(commit, columns, upto):
                self._kept.move_to_end(key)
                return kept
        read = _Rows(commit, columns, at.position, _read(path, at.version, columns))
        self._keep(key, read)
        return read

    def _keep(self, key: tuple[str, int], rows: _Rows) -> None:
        """Keep rows instead of other versions and earlier positions of the table; drop those not used for longest."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.commit == rows.commit and kept.position > rows.position:
                return
            self._kept = OrderedDict((known, other) for known, other in self._kept.items() if known[0] != key[0])
            self._kept[key] = rows
            while sum(other.size for other in self._kept.values()) > _KEPT_BYTES or len(self._kept) > _KEPT_TABLES:
                self._kept.popitem(last=False)


def _commit(path: Path, version: int) -> tuple[int, int]:
    """Return the identity of a version; raise an `OSError` if it is no longer in Delta's log.

    A table that was dropped and created again may have the same version.
    """
    found = (path / "_delta_log" / f"{version:020}.json").stat()
    return found.st_ino, found.st_mtime_ns


def _read(path: Path, version: int, columns: pa.Schema) -> pa.Table | None:
    """Return the rows of a version of a base table; None if it is not small."""
    found = BaseFiles.at(str(path), version)
    if found.rows > _ROWS or sum(file.size for file in found.files) > _BYTES:
        return None
    batches = (batch for file in found.files for batch in read_base_file(file, columns))
    rows = pa.Table.from_batches(batches, columns).combine_chunks()
    return rows if _is_small(rows) else None


def _is_small(rows: pa.Table) -> bool:
    return len(rows) <= _ROWS and rows.nbytes <= _BYTES


def _advanced(log: ChangeLog, rows: pa.Table, position: Lsn, schema: TableSchema, upto: Lsn) -> pa.Table | None:
    """Advance a table from a position to a later one; return None if there is much between them."""
    with closing(log.reader()) as reader:
        tail = reader.extent(schema.table, position, upto)
        if not tail.chunks:
            return rows
        if tail.size > _BYTES:
            return None
        images = pa.Table.from_batches(reader.read(tail, schema.columns), image_schema(schema.columns))
    batches = live_rows(rows.to_batches(), fold_net(images, schema))
    return pa.Table.from_batches(batches, schema.columns).combine_chunks()


def _nullable(rows: pa.Table) -> pa.Table:
    """Return rows with all columns nullable, as they are in the files."""
    return pa.Table.from_arrays(rows.columns, schema=pa.schema([pa.field(f.name, f.type) for f in rows.schema]))
