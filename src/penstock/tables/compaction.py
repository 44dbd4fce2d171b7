"""Compaction and vacuum of a base table.

**Compaction** is a commit that changes no rows and hence no position; its metadata repeats the position.
`files_to_compact` chooses the files. Rows are written in key order.

**Vacuum** is Delta's VACUUM, which goes by the time at which a file left the table. A version that the catalog lists
may still be read, by a query AS OF or by a query in progress. All files of that version were in the table when it was
committed, so no file that was in the table at that moment or later is removed (`vacuum_before`). Other readers of the
Delta table, which Penstock does not know, have one hour.

A version is readable only as long as its part of Delta's log exists. A table property controls how long Delta retains
its log; it is set to what is needed (`log_days`), since a reader may retain history for any length of time.

**Which files to compact.** Every merge adds small files and marks rows of older files as deleted. Three conditions make
merges and queries slower over time, and each has a rule:

- **small** files, if there are many;
- **fragmented** files, in which a large fraction of rows is deleted;
- **overlapping** files: many contain keys of the same range, so that none of them can be skipped.

The chosen files are rewritten together, sorted by key, into files with consecutive key ranges. Hence the rules
terminate: afterwards there are fewer small files, no deleted rows, and no two of the rewritten files overlap.

One step rewrites a limited number of bytes: its cost depends on the number of changes, not on the size of the table.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State, position_metadata
from penstock.tables.bounds import has_bounds
from penstock.tables.columns import column
from penstock.tables.file_commit import committed_at, files_of, remove_files, rewrite_files, snapshot_of

__all__ = [
    "GRACE_SECONDS",
    "TARGET_BYTES",
    "DeltaCompaction",
    "FileState",
    "files_to_compact",
    "log_days",
    "vacuum_before",
]

GRACE_SECONDS = 3600.0
"""How long other readers may read a version after it is no longer the newest."""
_CLOCKS_SECONDS = 600.0
"""The maximum difference between the clocks of a store and of writers."""
_DAY = 86_400.0
_LOG_RETENTION = "delta.logRetentionDuration"
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_TEXT_BOUND = 32
"""The number of characters that Delta keeps of a text; one more character marks a longer text."""
_PHYSICAL = "delta.columnMapping.physicalName"
_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}


def vacuum_before(needed_since: float, now: float) -> float:
    """Return the time before which a file must have left the table to be removed, given the oldest version needed.

    That version was committed at `needed_since`; a file that left the table earlier is not part of it or of later ones.
    """
    return min(needed_since - _CLOCKS_SECONDS, now - GRACE_SECONDS)


def log_days(kept: int, needed_since: float, now: float) -> int:
    """Return for how many days to retain the log: as before, unless that is too short or much too long."""
    needed = math.ceil(max(now - needed_since, 0.0) / _DAY) + 1
    return kept if needed <= kept <= 4 * needed + 4 else 2 * needed


class DeltaCompaction:
    """Compacts and vacuums one base table; called by its only writer."""

    def __init__(self, spark: SparkSession, base: DeltaBaseTable) -> None:
        self._base = base
        self._session = spark.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)

    def rewrite(self, at: State) -> int:
        """Compact files, as many as fit into one step; return how many were rewritten."""
        chosen = files_to_compact(self.files())
        if not chosen:
            return 0
        parts = max(1, math.ceil(sum(file.size for file in chosen) / TARGET_BYTES))
        order = [column(name) for name in self._base.schema.key] if self._is_ordered() else []
        metadata = position_metadata(self._base.incarnation(), at.position)
        rewrite_files(self._session, self._base.path, [file.path for file in chosen], parts, order, metadata)
        return len(chosen)

    def vacuum(self, oldest: int) -> bool:
        """Remove files that no version from `oldest` on needs; return whether that was possible."""
        now = time.time()
        since = committed_at(self._session, self._base.path, oldest)
        if since is None:
            return False
        self._set_log_retention(since, now)
        remove_files(self._session, self._base.path, vacuum_before(since, now))
        return True

    def files(self) -> list[FileState]:
        """Return the files of the newest version."""
        found = self._described(files_of(self._session, self._base.path)).toArrow()
        low, high = (_ranks(found.column("low"), found.column("high"), end) for end in (0, 1))
        columns = (found.column(name).to_pylist() for name in ("path", "size", "rows", "deleted"))
        return [FileState(*facts) for facts in zip(*columns, low, high, strict=True)]

    def _described(self, files: DataFrame) -> DataFrame:
        low = high = F.lit(None).cast("string")
        if self._is_ordered():
            name, kind = self._leading()
            values = StructType([StructField(name, StringType())])
            bounds = StructType([StructField("minValues", values), StructField("maxValues", values)])
            stats = F.from_json("stats", bounds)
            low, high = (
                F.substring(stats.getField(end).getField(name), 1, _TEXT_BOUND).try_cast(kind)
                for end in ("minValues", "maxValues")
            )
        return files.select(
            "path",
            "size",
            F.coalesce(F.get_json_object("stats", "$.numRecords").cast("long"), F.lit(0)).alias("rows"),
            F.coalesce("deletionVector.cardinality", F.lit(0)).alias("deleted"),
            low.alias("low"),
            high.alias("high"),
        )

    def _is_ordered(self) -> bool:
        """Return whether the table has a key by which rows can be sorted."""
        schema = self._base.schema
        return bool(schema.key) and all(has_bounds(schema.columns.field(name).type) for name in schema.key)

    def _leading(self) -> tuple[str, DataType]:
        """Return the name in files, and the type, of the first key column."""
        known = snapshot_of(self._session, self._base.path).schema().json()
        field = StructType.fromJson(json.loads(known))[self._base.schema.key[0]]
        return field.metadata.get(_PHYSICAL, field.name), field.dataType

    def _set_log_retention(self, since: float, now: float) -> None:
        properties = snapshot_of(self._session, self._base.path).metadata().configuration()
        known = properties.get(_LOG_RETENTION)
        found = re.fullmatch(r"interval (\d+) days", known.get()) if known.isDefined() else None
        kept = int(found[1]) if found else 0
        days = log_days(kept, since, now)
        if days != kept:
            interval = f"interval {days} days"
            self._base.set_properties({_LOG_RETENTION: interval, _FILE_RETENTION: interval})


def _ranks(low: pa.ChunkedArray, high: pa.ChunkedArray, end: int) -> list[int | None]:
    """Return the rank of each bound among all bounds; None for unknown bounds."""
    both = pa.chunked_array([*low.chunks, *high.chunks], low.type)
    ranks = pc.if_else(both.is_valid(), pc.rank(both, tiebreaker="dense"), None)
    return list(ranks.slice(end * len(low), len(low)).to_pylist())


TARGET_BYTES = 64 << 20
"""The target size of a file."""
_SMALL_BYTES = TARGET_BYTES // 4
_MANY_SMALL = 40
_FRAGMENTED = 0.2
_OVERLAPPING = 8
_STEP_BYTES = 512 << 20


class FileState(NamedTuple):
    """One file of a table."""

    path: str
    size: int
    rows: int
    deleted: int
    """How many of its rows are deleted."""
    low: int | None = None
    high: int | None = None
    """The ranks of its first and last key among all such keys; None if unknown."""


def files_to_compact(files: Sequence[FileState], step: int = _STEP_BYTES) -> list[FileState]:
    """Choose the files to rewrite in one step; none if no rule applies."""
    small = [file for file in files if file.size < _SMALL_BYTES]
    fragmented = [file for file in files if file.size >= _SMALL_BYTES and file.deleted > _FRAGMENTED * file.rows]
    overlapping = _most_overlapping(files)
    wanted = [
        *(small if len(small) > _MANY_SMALL else []),
        *fragmented,
        *(overlapping if len(overlapping) >= _OVERLAPPING else []),
    ]
    chosen: list[FileState] = []
    taken = 0
    for file in dict.fromkeys(wanted):
        if chosen and taken + file.size > step:
            break
        chosen.append(file)
        taken += file.size
    return chosen


def _most_overlapping(files: Sequence[FileState]) -> list[FileState]:
    """Return the files whose key range contains one point, the point that most files contain.

    A file with a single leading key value contains no point between two values: it cannot be split further.
    """
    begins = [
        (file.low, 1) for file in files if file.low is not None and file.high is not None and file.low < file.high
    ]
    ends = [(file.high, 0) for file in files if file.low is not None and file.high is not None and file.low < file.high]
    open_files = most = 0
    point = None
    for place, begin in sorted([*begins, *ends]):  # at equal ranks, ends sort first
        open_files += 1 if begin else -1
        if open_files > most:
            most, point = open_files, place
    if point is None:
        return []
    return [f for f in files if f.low is not None and f.high is not None and f.low <= point < f.high]
