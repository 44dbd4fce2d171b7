"""What keeps a base table good: worn files are written anew, and files that nobody needs are removed.

Rewriting is a commit that changes no row, and so no position; it says the position again. Which files, is for
`worn_files` to say. Rows are written in the order of the key.

Removing is Delta's VACUUM, which goes by the time since when a file is no longer part of the table. A version that the
catalog lists may still be read, by a view of the past or by a query that has begun. What it is made of was there when
it was committed, so nothing goes that was part of the table at that moment or later (`vacuum_before`). Plain readers of
the Delta table, of whom we know nothing, have an hour.

For such a version to be readable, its part of Delta's log must be there as well. How long Delta keeps that is a
property of the table, which is set to what is needed (`log_days`): a reader may hold history for as long as it likes.

Which files of a base table are worth writing anew.

Every merge adds small files and marks rows of older ones as deleted. Three things make merges and queries dearer with
time, and each has its rule:

- **small** files, when there are many of them;
- files that are **eaten**: a good part of their rows is deleted;
- files that lie **over one another**: many hold keys from the same range, so none of them can be passed by.

What is chosen together is written sorted by the key, into files that follow one another. So the rules come to an end:
afterwards there are fewer small files, no deleted rows, and of the chosen files no two lie over one another.

One step takes a limited number of bytes: its cost follows what has worn off, not the table.
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
from penstock.tables.base_state import State, of_position
from penstock.tables.bounds import has_bounds
from penstock.tables.columns import column
from penstock.tables.file_commit import committed_at, files_of, remove_files, rewrite_files, snapshot_of

__all__ = ["GRACE_SECONDS", "TARGET_BYTES", "FileState", "Upkeep", "log_days", "vacuum_before", "worn_files"]

GRACE_SECONDS = 3600.0
"""How long a plain reader may go on reading a version that is no longer the newest."""
_CLOCKS_SECONDS = 600.0
"""How far the clocks of a store and of writers may be apart."""
_DAY = 86_400.0
_LOG_KEPT = "delta.logRetentionDuration"
_FILES_KEPT = "delta.deletedFileRetentionDuration"
_TEXT_BOUND = 32
"""As many characters of a text Delta keeps; beyond them, one more says that there were others."""
_PHYSICAL = "delta.columnMapping.physicalName"
_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}


def vacuum_before(needed_since: float, now: float) -> float:
    """Return the moment before which a file must have left the table to be removed, given the oldest version needed.

    That version was committed at `needed_since`; whatever left the table earlier is not part of it, nor of later ones.
    """
    return min(needed_since - _CLOCKS_SECONDS, now - GRACE_SECONDS)


def log_days(kept: int, needed_since: float, now: float) -> int:
    """Return for how many days the log shall be kept: as before, unless that is too short or far too long."""
    needed = math.ceil(max(now - needed_since, 0.0) / _DAY) + 1
    return kept if needed <= kept <= 4 * needed + 4 else 2 * needed


class Upkeep:
    """Keeps one base table good; its one writer does this, too."""

    def __init__(self, spark: SparkSession, base: DeltaBaseTable) -> None:
        self._base = base
        self._session = spark.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)

    def rewrite(self, at: State) -> int:
        """Write worn files anew, as many as one step takes; return how many those were."""
        chosen = worn_files(self.files())
        if not chosen:
            return 0
        parts = max(1, math.ceil(sum(file.size for file in chosen) / TARGET_BYTES))
        order = [column(name) for name in self._base.schema.key] if self._is_ordered() else []
        told = of_position(self._base.incarnation(), at.position)
        rewrite_files(self._session, self._base.path, [file.path for file in chosen], parts, order, told)
        return len(chosen)

    def vacuum(self, oldest: int) -> bool:
        """Remove what no version from `oldest` on needs; say whether that was possible."""
        now = time.time()
        since = committed_at(self._session, self._base.path, oldest)
        if since is None:
            return False
        self._keep_log(since, now)
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
        """Whether the table has a key that can be sorted by."""
        schema = self._base.schema
        return bool(schema.key) and all(has_bounds(schema.columns.field(name).type) for name in schema.key)

    def _leading(self) -> tuple[str, DataType]:
        """Return what the first column of the key is called in files, and its type."""
        known = snapshot_of(self._session, self._base.path).schema().json()
        field = StructType.fromJson(json.loads(known))[self._base.schema.key[0]]
        return field.metadata.get(_PHYSICAL, field.name), field.dataType

    def _keep_log(self, since: float, now: float) -> None:
        properties = snapshot_of(self._session, self._base.path).metadata().configuration()
        known = properties.get(_LOG_KEPT)
        told = re.fullmatch(r"interval (\d+) days", known.get()) if known.isDefined() else None
        kept = int(told[1]) if told else 0
        days = log_days(kept, since, now)
        if days != kept:
            interval = f"interval {days} days"
            self._base.set_properties({_LOG_KEPT: interval, _FILES_KEPT: interval})


def _ranks(low: pa.ChunkedArray, high: pa.ChunkedArray, end: int) -> list[int | None]:
    """Return where bounds stand in the order of all of them; None for those that are not known."""
    both = pa.chunked_array([*low.chunks, *high.chunks], low.type)
    ranks = pc.if_else(both.is_valid(), pc.rank(both, tiebreaker="dense"), None)
    return list(ranks.slice(end * len(low), len(low)).to_pylist())


TARGET_BYTES = 64 << 20
"""How large a file is to become."""
_SMALL_BYTES = TARGET_BYTES // 4
_MANY_SMALL = 40
_EATEN = 0.2
_DEEP = 8
_STEP_BYTES = 512 << 20


class FileState(NamedTuple):
    """One file of a table."""

    path: str
    size: int
    rows: int
    deleted: int
    """How many of its rows are gone."""
    low: int | None = None
    high: int | None = None
    """Where its first and last keys stand in the order of all such keys; None where that is not known."""


def worn_files(files: Sequence[FileState], step: int = _STEP_BYTES) -> list[FileState]:
    """Choose the files of one step; none where the table is in good order."""
    small = [file for file in files if file.size < _SMALL_BYTES]
    eaten = [file for file in files if file.size >= _SMALL_BYTES and file.deleted > _EATEN * file.rows]
    deep = _deepest(files)
    wanted = [*(small if len(small) > _MANY_SMALL else []), *eaten, *(deep if len(deep) >= _DEEP else [])]
    chosen: list[FileState] = []
    taken = 0
    for file in dict.fromkeys(wanted):
        if chosen and taken + file.size > step:
            break
        chosen.append(file)
        taken += file.size
    return chosen


def _deepest(files: Sequence[FileState]) -> list[FileState]:
    """Return the files that hold keys on both sides of one point: the point where they are most.

    A file whose keys all begin alike has nothing on both sides of any point: it cannot be divided further.
    """
    begins = [
        (file.low, 1) for file in files if file.low is not None and file.high is not None and file.low < file.high
    ]
    ends = [(file.high, 0) for file in files if file.low is not None and file.high is not None and file.low < file.high]
    open_files = most = 0
    point = None
    for place, begin in sorted([*begins, *ends]):  # at one place, ends come first
        open_files += 1 if begin else -1
        if open_files > most:
            most, point = open_files, place
    if point is None:
        return []
    return [f for f in files if f.low is not None and f.high is not None and f.low <= point < f.high]
