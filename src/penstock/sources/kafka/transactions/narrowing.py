"""Formats that decode no more of a message than transactions need: its columns are not looked at here.

JSON is read with columns of our own: what was inferred from the first messages, rows of a snapshot, may not have seen
a transaction. Connect may wrap records with their schema; both ways of writing are in these columns, and where a
message has neither, all of them are null. Of Avro, the reader's schema is made smaller: the decoder then skips what the
writer wrote beyond it.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.formats import AvroFormat, Extra, JsonFormat, ResolvedFormat, resolve
from penstock.formats.avro.schema import parse_avro
from penstock.formats.avro.text import avro_text

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
    """Return the format of a topic's values, for what marks need of a record."""
    return _narrowed(resolved, _RECORD, _RECORD_FIELDS)


def narrowed_metadata(resolved: ResolvedFormat) -> ResolvedFormat:
    """Return the format of the metadata topic's values, for what is needed of them."""
    return _narrowed(resolved, _END, _END_FIELDS)


def _narrowed(resolved: ResolvedFormat, columns: str, fields: Collection[str]) -> ResolvedFormat:
    described = resolved.format
    if isinstance(described, JsonFormat):
        either = f"{columns}, payload STRUCT<{columns}>"
        return resolve(described.model_copy(update={"columns": either, "extra": Extra.IGNORE}))
    if isinstance(described, AvroFormat):
        return resolve(described.model_copy(update={"reader_schema": _smaller(resolved.reader, fields)}))
    return resolved


def _smaller(text: str, fields: Collection[str]) -> str:
    """Leave the other fields out of a record."""
    schema = parse_avro(text)
    schema.fields = [field for field in schema.fields if field.name in fields]
    return avro_text(schema)
