"""What a field means beyond its type: the names that Kafka Connect and Debezium give, carried along as they are.

Connect writes a timestamp as a number and a decimal as bytes, and says so by a name in the schema (Avro:
``connect.name``; JSON: ``name``). Decoding gives the number or the bytes. What they mean is kept beside the reader's
schema, by the place of the field, for those who make columns of a table from them (`penstock.envelopes.meanings`).

Avro's own logical types are not among these: decoding does them.
"""

from __future__ import annotations

__all__ = ["BASE64", "ITEM", "KEPT", "Meaning"]

Meaning = tuple[tuple[str, ...], str]
"""Where, by the names of fields from the top (`ITEM` for the items of an array), and what."""

ITEM = "[]"

BASE64 = "base64"
"""Bytes, which JSON has as text."""

KEPT = frozenset(
    {
        "org.apache.kafka.connect.data.Date",
        "org.apache.kafka.connect.data.Decimal",
        "org.apache.kafka.connect.data.Time",
        "org.apache.kafka.connect.data.Timestamp",
        "io.debezium.data.VariableScaleDecimal",
        "io.debezium.time.Date",
        "io.debezium.time.MicroTime",
        "io.debezium.time.MicroTimestamp",
        "io.debezium.time.NanoTime",
        "io.debezium.time.NanoTimestamp",
        "io.debezium.time.Time",
        "io.debezium.time.Timestamp",
        "io.debezium.time.ZonedTimestamp",
    }
)
"""Names by which a value is another one. All others (Json, Uuid, Enum, Bits, geometry …) are values as they stand."""
