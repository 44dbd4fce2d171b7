"""Where in the upstream database's log a record of Debezium comes from, and whether that can be told.

A position is a text of 40 digits, so that it compares as text, in Spark and in Python, and always takes the same room:

- Postgres: the last commit before (the first of ``source.sequence``), then ``source.lsn``. The LSN alone does not rise
  from record to record: transactions run side by side, and Debezium writes one after the other, as they committed.
  (The second of ``sequence`` should be the LSN, and is not before Debezium 1.7.)
- MySQL: the number of the binlog file, the position in it, the row in the event.

Several records may have one position: rows of one COPY, and the two records (d, c) of a row whose key changed. They
have different keys. Other connectors have nothing that rises so; SQL Server is the known case (DBZ-3375).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError

__all__ = ["SNAPSHOT", "event_time", "in_snapshot", "refuse_compacted", "upstream_position", "upstream_problem"]

SNAPSHOT = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last")
"""What ``source.snapshot`` says of rows of the first snapshot."""

_OLDEST = (1, 5)
_STREAM = ("false",)
_SEQUENCE = r'^\[\s*(?:null|"?(\d{1,20})"?)\s*,'
_FILE = r"\.(\d{1,10})$"
_INSTEAD = "choose ENVELOPE DEBEZIUM UPSERT"


def upstream_position(kind: StructType) -> Column:
    """Return the position of a record, or null where its ``source``, of type `kind`, does not tell it."""
    connector = _field(kind, "connector", "string")
    return F.when(connector == "postgresql", _postgres(kind)).when(connector == "mysql", _mysql(kind))


def event_time(kind: StructType) -> Column:
    """Return when the change was made, in milliseconds, or null."""
    return _field(kind, "ts_ms", "bigint")


def in_snapshot(kind: StructType) -> Column:
    """Whether a record is a row of the first snapshot, not a change."""
    return _snapshot(kind).isin(*SNAPSHOT) & F.col("op").isin("r", "c")


def upstream_problem(kind: StructType) -> Column:
    """Say of a record why its place upstream cannot be told."""
    connector, snapshot = _field(kind, "connector", "string"), _snapshot(kind)
    outside = (F.col("op") == "r") & ~snapshot.isin(*SNAPSHOT)
    nowhere = ~in_snapshot(kind) & upstream_position(kind).isNull()
    oldest = ".".join(map(str, _OLDEST))
    return (
        F.when(connector.isNull(), F.lit("it does not say which connector of Debezium wrote it (source.connector)"))
        .when(connector == "sqlserver", F.lit(f"SQL Server does not tell repeated records from new ones: {_INSTEAD}"))
        .when(~connector.isin("postgresql", "mysql"), F.lit(f"its connector is neither Postgres nor MySQL: {_INSTEAD}"))
        .when(_older(kind), F.lit(f"it was written by a Debezium older than {oldest}: use a newer one, or {_INSTEAD}"))
        .when(outside, F.lit(f"it was read by a snapshot that runs beside the stream: {_INSTEAD}"))
        .when(
            ~snapshot.isin(*SNAPSHOT, *_STREAM), F.lit(f"its source.snapshot says what is not known here: {_INSTEAD}")
        )
        .when(nowhere, F.lit(f"it has no position (Postgres: sequence, lsn; MySQL: file, pos, row): {_INSTEAD}"))
    )


def refuse_compacted(topic: str, cleanup_policy: str) -> None:
    """Raise a `UsageError` for a topic whose old records go away: changes would be missing between those that stay."""
    if "compact" in (part.strip() for part in cleanup_policy.split(",")):
        message = f"topic {topic!r} is compacted (cleanup.policy = {cleanup_policy}): records are missing in it"
        raise UsageError(message, f"set cleanup.policy to delete and let Debezium write it anew, or {_INSTEAD}")


def _postgres(kind: StructType) -> Column:
    sequence, lsn = _field(kind, "sequence", "string"), _field(kind, "lsn", "bigint")
    told = sequence.rlike(_SEQUENCE) & (lsn >= 0)
    return F.when(told, F.concat(_digits(F.regexp_extract(sequence, _SEQUENCE, 1), 20), _digits(lsn, 20)))


def _mysql(kind: StructType) -> Column:
    file, place = _field(kind, "file", "string"), _field(kind, "pos", "bigint")
    row = F.coalesce(_field(kind, "row", "bigint"), F.lit(0))
    told = file.rlike(_FILE) & (place >= 0) & row.between(0, 9_999_999_999)
    number = F.regexp_extract(file, _FILE, 1)
    return F.when(told, F.concat(_digits(number, 10), _digits(place, 20), _digits(row, 10)))


def _older(kind: StructType) -> Column:
    """Whether the version is too old, or cannot be read."""
    version = _field(kind, "version", "string")
    parts = [F.regexp_extract(version, r"^(\d{1,4})\.(\d{1,4})\.", group).try_cast("int") for group in (1, 2)]
    number = parts[0] * 10_000 + parts[1]
    return ~F.coalesce(number >= _OLDEST[0] * 10_000 + _OLDEST[1], F.lit(False))


def _snapshot(kind: StructType) -> Column:
    return F.lower(F.coalesce(_field(kind, "snapshot", "string"), F.lit("false")))


def _digits(value: Column, count: int) -> Column:
    return F.lpad(value.cast("string"), count, "0")


def _field(kind: StructType, name: str, as_type: str) -> Column:
    """Return a field of ``source``; null where it is not there, or not what it should be."""
    if name not in kind.names:
        return F.lit(None).cast(as_type)
    return F.col("source").getField(name).try_cast(as_type)
