"""The position of a Debezium record in the log of the upstream database, and problems with it.

A position is a text of 40 digits, so that it compares as text, in Spark and in Python, and has a fixed size:

- Postgres: the previous commit (the first item of ``source.sequence``), then ``source.lsn``. The LSN alone does not
  increase from record to record: transactions run concurrently, and Debezium writes them one after the other in commit
  order. (The second item of ``sequence`` should be the LSN, but is not before Debezium 1.7.)
- MySQL: the number of the binlog file, the position in it, the row in the event.

Several records may have the same position: rows of one COPY, and the two records (d, c) of a row whose key changed.
They have different keys. Other connectors have no such increasing position; SQL Server is the known case (DBZ-3375).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError

__all__ = ["SNAPSHOT", "event_time", "in_snapshot", "reject_compacted", "upstream_position", "upstream_problem"]

SNAPSHOT = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last")
"""Values of ``source.snapshot`` in rows of the initial snapshot."""

_OLDEST = (1, 5)
_STREAM = ("false",)
_SEQUENCE = r'^\[\s*(?:null|"?(\d{1,20})"?)\s*,'
_FILE = r"\.(\d{1,10})$"
_INSTEAD = "use ENVELOPE DEBEZIUM UPSERT"


def upstream_position(kind: StructType) -> Column:
    """Return the position of a record, or null if its ``source``, of type `kind`, has none."""
    connector = _field(kind, "connector", "string")
    return F.when(connector == "postgresql", _postgres(kind)).when(connector == "mysql", _mysql(kind))


def event_time(kind: StructType) -> Column:
    """Return the time of the change in milliseconds, or null."""
    return _field(kind, "ts_ms", "bigint")


def in_snapshot(kind: StructType) -> Column:
    """Return whether a record is a row of the initial snapshot, not a change."""
    return _snapshot(kind).isin(*SNAPSHOT) & F.col("op").isin("r", "c")


def upstream_problem(kind: StructType) -> Column:
    """Return the problem of a record whose upstream position cannot be determined."""
    connector, snapshot = _field(kind, "connector", "string"), _snapshot(kind)
    outside = (F.col("op") == "r") & ~snapshot.isin(*SNAPSHOT)
    nowhere = ~in_snapshot(kind) & upstream_position(kind).isNull()
    oldest = ".".join(map(str, _OLDEST))
    return (
        F.when(connector.isNull(), F.lit("the record does not name its Debezium connector (source.connector)"))
        .when(
            connector == "sqlserver",
            F.lit(f"repeated records of the SQL Server connector cannot be detected: {_INSTEAD}"),
        )
        .when(~connector.isin("postgresql", "mysql"), F.lit(f"the connector is neither Postgres nor MySQL: {_INSTEAD}"))
        .when(
            _older(kind), F.lit(f"the record was written by Debezium before {oldest}: upgrade Debezium, or {_INSTEAD}")
        )
        .when(outside, F.lit(f"the record belongs to an incremental snapshot: {_INSTEAD}"))
        .when(~snapshot.isin(*SNAPSHOT, *_STREAM), F.lit(f"source.snapshot has an unknown value: {_INSTEAD}"))
        .when(
            nowhere, F.lit(f"the record has no position (Postgres: sequence, lsn; MySQL: file, pos, row): {_INSTEAD}")
        )
    )


def reject_compacted(topic: str, cleanup_policy: str) -> None:
    """Raise `UsageError` for a compacted topic: compaction removes changes between those that remain."""
    if "compact" in (part.strip() for part in cleanup_policy.split(",")):
        message = f"topic {topic!r} is compacted (cleanup.policy = {cleanup_policy}), so records are missing"
        raise UsageError(message, f"set cleanup.policy to delete and have Debezium rewrite the topic, or {_INSTEAD}")


def _postgres(kind: StructType) -> Column:
    sequence, lsn = _field(kind, "sequence", "string"), _field(kind, "lsn", "bigint")
    is_valid = sequence.rlike(_SEQUENCE) & (lsn >= 0)
    return F.when(is_valid, F.concat(_digits(F.regexp_extract(sequence, _SEQUENCE, 1), 20), _digits(lsn, 20)))


def _mysql(kind: StructType) -> Column:
    file, place = _field(kind, "file", "string"), _field(kind, "pos", "bigint")
    row = F.coalesce(_field(kind, "row", "bigint"), F.lit(0))
    is_valid = file.rlike(_FILE) & (place >= 0) & row.between(0, 9_999_999_999)
    number = F.regexp_extract(file, _FILE, 1)
    return F.when(is_valid, F.concat(_digits(number, 10), _digits(place, 20), _digits(row, 10)))


def _older(kind: StructType) -> Column:
    """Return whether the version is too old, or cannot be parsed."""
    version = _field(kind, "version", "string")
    parts = [F.regexp_extract(version, r"^(\d{1,4})\.(\d{1,4})\.", group).try_cast("int") for group in (1, 2)]
    number = parts[0] * 10_000 + parts[1]
    return ~F.coalesce(number >= _OLDEST[0] * 10_000 + _OLDEST[1], F.lit(False))


def _snapshot(kind: StructType) -> Column:
    return F.lower(F.coalesce(_field(kind, "snapshot", "string"), F.lit("false")))


def _digits(value: Column, count: int) -> Column:
    return F.lpad(value.cast("string"), count, "0")


def _field(kind: StructType, name: str, as_type: str) -> Column:
    """Return a field of ``source``; null if it is missing or has another type."""
    if name not in kind.names:
        return F.lit(None).cast(as_type)
    return F.col("source").getField(name).try_cast(as_type)
