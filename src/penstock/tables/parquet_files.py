"""Writes Arrow batches into one Parquet file of a Delta table, with the add action that describes it.

::

    batches ─▶ about 64 MB of them ─▶ a row group each ─▶ part-….parquet ─▶ the "add" action of the file, as JSON

The file is written outside the table's folder, so that a failed copy and its last stray task leave nothing in the
table. It belongs to the table once it has been moved there and a commit adds it (see `file_commit`). Spark would
convert the same batches to rows and back to columns, value by value. Memory use is one row group, or one batch if that
is larger. The lowest zstd level costs no more than snappy and halves the file size.

Statistics are those that are exact in the Parquet footer and mean the same to Delta: counts, and bounds of integers,
dates, timestamps and texts, which Delta truncates. Bounds of floats (NaN) and bounds that cannot be expressed are left
out; a file without bounds is never skipped. As in Delta, the first 32 columns have statistics, and more if the key
comes later.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.base_files import known_bounds

__all__ = ["INDEXED_COLUMNS", "WrittenFile", "adopt_files", "indexed_columns", "write_file"]

_GROUP_BYTES = 64 << 20
INDEXED_COLUMNS = 32
"""The number of columns for which Delta keeps statistics by default."""
_TEXT_BOUND = 32
"""The number of characters that Delta keeps of a text."""
_BEYOND_ALL = "\U0010ffff"
_TO_MILLISECONDS = timedelta(microseconds=999)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC) - _TO_MILLISECONDS
"""Later timestamps, such as 9999-12-31 23:59:59.999999, cannot be rounded up to a millisecond: no upper bound."""


@dataclass(frozen=True)
class WrittenFile:
    """A file to be committed; there is no file if it has no rows."""

    rows: int
    add: str | None
    """Delta's add action, as JSON."""


def indexed_columns(columns: pa.Schema, key: Iterable[str]) -> int:
    """Return how many columns, counting nested ones, need statistics so that all key columns have them."""
    last = max((columns.get_field_index(name) for name in key), default=-1)
    return max(INDEXED_COLUMNS, sum(_leaves(columns.field(place).type) for place in range(last + 1)))


def _leaves(kind: pa.DataType) -> int:
    return max(1, sum(_leaves(kind.field(place).type) for place in range(kind.num_fields)))


def write_file(
    folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], indexed: int = INDEXED_COLUMNS
) -> WrittenFile:
    """Write all batches into one new file; remove it if they end in an error."""
    path = folder / f"part-{uuid.uuid4()}.zstd.parquet"
    writer: pq.ParquetWriter | None = None
    try:
        for group in _groups(batches):
            writer = writer or pq.ParquetWriter(path, schema, compression="zstd", compression_level=1)
            writer.write_table(pa.Table.from_batches(group, schema), row_group_size=1 << 30)
        if writer is None:
            return WrittenFile(0, None)
        writer.close()
        return _described(path, indexed)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def adopt_files(actions: Iterable[str], staged: Path, folder: Path) -> None:
    """Move finished files from the staging folder to the folder of their table."""
    folder.mkdir(parents=True, exist_ok=True)
    for action in actions:
        name = json.loads(action)["add"]["path"]
        (staged / name).rename(folder / name)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _described(path: Path, indexed: int) -> WrittenFile:
    metadata = pq.read_metadata(path)
    add = {
        "path": path.name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": round(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(_statistics(metadata, indexed)),
    }
    return WrittenFile(metadata.num_rows, json.dumps({"add": add}))


def _statistics(metadata: pq.FileMetaData, indexed: int) -> dict[str, Any]:
    """Return counts of rows and nulls, and exact bounds, by column; nested columns are left out."""
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for place in range(min(metadata.num_columns, indexed)):
        column = metadata.schema.column(place)
        known = [group.column(place).statistics for group in groups]
        if column.path != column.name or column.max_repetition_level or any(one is None for one in known):
            continue
        if all(one.has_null_count for one in known):
            found["nullCount"][column.name] = sum(one.null_count for one in known)
        bounds = [bounds for one in known if (bounds := known_bounds(one)) is not None]
        if len(bounds) == sum(one.num_values > 0 for one in known) and bounds:
            _add_bounds(found, column.name, min(low for low, _ in bounds), max(high for _, high in bounds))
    return found


def _add_bounds(found: dict[str, Any], name: str, low: Any, high: Any) -> None:
    if isinstance(low, bool):
        return
    if isinstance(low, int):
        found["minValues"][name], found["maxValues"][name] = low, high
    elif isinstance(low, datetime):
        found["minValues"][name] = _moment(low)
        if high <= _LAST_MOMENT.replace(tzinfo=high.tzinfo):
            found["maxValues"][name] = _moment(high + _TO_MILLISECONDS)
    elif isinstance(low, date):
        found["minValues"][name], found["maxValues"][name] = low.isoformat(), high.isoformat()
    elif isinstance(low, str):
        whole = len(high) <= _TEXT_BOUND or high[_TEXT_BOUND] == _BEYOND_ALL
        cut = high if whole else high[:_TEXT_BOUND] + _BEYOND_ALL
        found["minValues"][name], found["maxValues"][name] = low[:_TEXT_BOUND], cut


def _moment(moment: datetime) -> str:
    """Format a timestamp as Delta does, in milliseconds, with a time zone only if it has one."""
    text = moment.replace(tzinfo=None) if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds") + ("Z" if moment.tzinfo else "")
