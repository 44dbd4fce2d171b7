"""Small live tables, read in this process: what a query of the running process reads without any job of Spark.

::

    base files at L ──▶ Arrow, kept until the table has a newer version ──┐
                                                                          ├─ live_rows ──▶ the table at T, in Arrow
    log (L, T] ──▶ fold_net ──────────────────────────────────────────────┘

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
from dataclasses import dataclass
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
"""The size of a small table, in its files and in Arrow, and of the tail that is folded here."""
_KEPT_BYTES = 64 << 20
"""The size of all base tables that are kept."""
_KEPT_TABLES = 500


@dataclass(frozen=True)
class _Base:
    """The rows of one version of a base table, with some columns; None if the table is not small."""

    commit: tuple[int, int]
    columns: pa.Schema
    rows: pa.Table | None

    @property
    def size(self) -> int:
        return 0 if self.rows is None else self.rows.nbytes


class SmallTables:
    """Reads small live tables, and keeps their base tables; any number of threads may use it."""

    def __init__(self) -> None:
        self._bases: OrderedDict[tuple[str, int], _Base] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> pa.Table | None:
        """Return the table at `upto`, with its columns all nullable; None if Spark is to read it."""
        try:
            if message_tables(log) is not None:
                return None
            base = self._base(path, at.version, schema.columns)
            return None if base is None else _live(log, base, at, schema, upto)
        except (PenstockError, OSError, pa.ArrowException):
            return None

    def _base(self, path: Path, version: int, columns: pa.Schema) -> pa.Table | None:
        """Return the rows of a version; a table that was dropped and created again may have the same version."""
        commit, key = _commit(path, version), (str(path), version)
        with self._lock:
            kept = self._bases.get(key)
            if kept is not None and kept.commit == commit and kept.columns.equals(columns, check_metadata=True):
                self._bases.move_to_end(key)
                return kept.rows
        read = _Base(commit, columns, _read(path, version, columns))
        with self._lock:
            self._keep(key, read)
        return read.rows

    def _keep(self, key: tuple[str, int], base: _Base) -> None:
        """Keep a base table instead of the older versions of the same table, and drop those not used for longest."""
        self._bases = OrderedDict((known, kept) for known, kept in self._bases.items() if known[0] != key[0])
        self._bases[key] = base
        while sum(kept.size for kept in self._bases.values()) > _KEPT_BYTES or len(self._bases) > _KEPT_TABLES:
            self._bases.popitem(last=False)


def _commit(path: Path, version: int) -> tuple[int, int]:
    """Return the identity of a version; raise an `OSError` if it is no longer in Delta's log."""
    found = (path / "_delta_log" / f"{version:020}.json").stat()
    return found.st_ino, found.st_mtime_ns


def _read(path: Path, version: int, columns: pa.Schema) -> pa.Table | None:
    found = BaseFiles.at(str(path), version)
    if found.rows > _ROWS or sum(file.size for file in found.files) > _BYTES:
        return None
    batches = (batch for file in found.files for batch in read_base_file(file, columns))
    rows = pa.Table.from_batches(batches, columns).combine_chunks()
    return rows if rows.nbytes <= _BYTES else None


def _live(log: ChangeLog, base: pa.Table, at: State, schema: TableSchema, upto: Lsn) -> pa.Table | None:
    with closing(log.reader()) as reader:
        tail = reader.extent(schema.table, at.position, upto)
        if not tail.chunks:
            return _nullable(base)
        if tail.size > _BYTES:
            return None
        images = pa.Table.from_batches(reader.read(tail, schema.columns), image_schema(schema.columns))
    batches = list(live_rows(base.to_batches(), fold_net(images, schema)))
    return _nullable(pa.Table.from_batches(batches, schema.columns).combine_chunks())


def _nullable(rows: pa.Table) -> pa.Table:
    """Return rows with all columns nullable, as they are in the files."""
    return pa.Table.from_arrays(rows.columns, schema=pa.schema([pa.field(f.name, f.type) for f in rows.schema]))
