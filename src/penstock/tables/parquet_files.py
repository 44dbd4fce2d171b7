"""Arrow batches into one file of a Delta table, and what Delta has to know of it.

::

    batches ─▶ about 64 MB of them ─▶ a row group each ─▶ part-….parquet ─▶ the "add" of that file, as JSON

The file is written on the side, so that a copy that fails, and its last straggler, leave nothing with the table. It
belongs to the table once it was moved there and a commit adds it (see `file_commit`). Spark would turn the same batches
into rows, and those into columns again, one value at a time. Memory is that of one row group, or of one batch where
that is larger. The lightest zstd costs no more than snappy and gives files of half the size.

Statistics are those that are exact in Parquet's footer and mean the same to Delta: counts, and bounds of integers,
dates, timestamps and texts, which Delta cuts off. Bounds of floats (NaN) are left out, and those that cannot be
written; without them, no file is passed by. As Delta does, they are kept of the first 32 columns, and of more where the
key comes later.
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
"""As many columns as Delta itself keeps statistics of."""
_TEXT_BOUND = 32
"""As many characters of a text as Delta keeps."""
_BEYOND_ALL = "\U0010ffff"
_TO_MILLISECONDS = timedelta(microseconds=999)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC) - _TO_MILLISECONDS
"""What comes later, as 9999-12-31 23:59:59.999999, cannot be rounded up to a millisecond: it has no upper bound."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that waits for its commit; without rows there is none."""

    rows: int
    add: str | None
    """Delta's action, as it stands in a commit."""


def indexed_columns(columns: pa.Schema, key: Iterable[str]) -> int:
    """Return of how many columns statistics have to be kept, those within others counted, to have them of the key."""
    last = max((columns.get_field_index(name) for name in key), default=-1)
    return max(INDEXED_COLUMNS, sum(_leaves(columns.field(place).type) for place in range(last + 1)))


def _leaves(kind: pa.DataType) -> int:
    return max(1, sum(_leaves(kind.field(place).type) for place in range(kind.num_fields)))


def write_file(
    folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], indexed: int = INDEXED_COLUMNS
) -> WrittenFile:
    """Write all batches into one new file; what was begun is removed if they end in an error."""
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
    """Move files that are whole from where they were written to the table that will be made of them."""
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
    """Return counts of rows and nulls, and the bounds that are exact, by column; those within others are left out."""
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
    """As Delta writes it, to the millisecond; a timestamp without time zone has none."""
    text = moment.replace(tzinfo=None) if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds") + ("Z" if moment.tzinfo else "")
