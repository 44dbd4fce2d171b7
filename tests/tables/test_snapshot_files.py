"""The ranges of an initial snapshot, divided among tasks. `tests/engine/test_snapshot.py` copies tables in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model import TableName, TableSchema
from penstock.sources.database import TableCopy
from penstock.tables.snapshot_files import _CopyReader, _Request


@pytest.mark.parametrize(
    ("sessions", "tasks"), [(1, [[0, 1, 2, 3, 4]]), (2, [[0, 2, 4], [1, 3]]), (9, [[0], [1], [2], [3], [4]])]
)
def test_tasks_read_several_ranges(sessions: int, tasks: list[list[int]]) -> None:
    schema = TableSchema(TableName("public", "t"), pa.schema([]), ())
    limited = type("Limited", (TableCopy,), {"sessions": lambda _: sessions, "read": lambda *_: iter(())})
    reader = _CopyReader(_Request(limited(schema, 5, 0, 0)))
    assert [list(partition.value) for partition in reader.partitions()] == tasks
