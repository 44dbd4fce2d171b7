"""The table used by benchmarks of logs and tables: eight columns of common types."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["COLUMNS"]

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.int64()),
        ("status", pa.string()),
        ("note", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("weight", pa.float64()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
