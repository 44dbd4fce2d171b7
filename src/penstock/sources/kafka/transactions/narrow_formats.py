"""Formats that decode only the fields that transactions need.

JSON is read with fixed columns, because columns that were inferred from snapshot rows may not include the transaction.
Connect may wrap records with their schema; the columns cover both forms, and if a message has neither, all are null.
For Avro, the reader schema is reduced, and the decoder skips the rest.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.fields import with_fields
from penstock.formats import AvroFormat, Extra, JsonFormat, ResolvedFormat, resolve
from penstock.formats.avro.schema import avro_text, parse_avro

__all__ = ["narrowed_metadata", "narrowed_values"]

_RECORD = (
    "transaction STRUCT<id: STRING, total_order: BIGINT>, "
    "source STRUCT<sequence: STRING, snapshot: STRING, lsn: BIGINT, file: STRING, pos: BIGINT>"
)
_END = (
    "status STRING, id STRING, ts_ms BIGINT, "
    "data_collections ARRAY<STRUCT<data_collection: STRING, event_count: BIGINT>>"
)
_RECORD_FIELDS = ("transaction", "source")
_END_FIELDS = ("status", "id", "ts_ms", "data_collections")


def narrowed_values(resolved: ResolvedFormat) -> ResolvedFormat:
    """Return the format of a topic's values, reduced to the fields that `message_columns` needs."""
    return _narrowed(resolved, _RECORD, _RECORD_FIELDS)


def narrowed_metadata(resolved: ResolvedFormat) -> ResolvedFormat:
    """Return the format of the metadata topic's values, reduced to the fields that are needed."""
    return _narrowed(resolved, _END, _END_FIELDS)


def _narrowed(resolved: ResolvedFormat, columns: str, fields: Collection[str]) -> ResolvedFormat:
    described = resolved.format
    if isinstance(described, JsonFormat):
        either = f"{columns}, payload STRUCT<{columns}>"
        return resolve(with_fields(described, columns=either, extra=Extra.IGNORE))
    if isinstance(described, AvroFormat):
        return resolve(with_fields(described, reader_schema=_smaller(resolved.reader, fields)))
    return resolved


def _smaller(text: str, fields: Collection[str]) -> str:
    """Remove the other fields from a record."""
    schema = parse_avro(text)
    schema.fields = [field for field in schema.fields if field.name in fields]
    return avro_text(schema)
