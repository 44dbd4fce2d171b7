"""ENVELOPE NONE, UPSERT and DEBEZIUM UPSERT for batches of messages in Arrow, without Spark.

::

    MessageBatch ─▶ include ─▶ append_images, upsert_images, debezium_upsert_images ─▶ images │ rejected messages

The rules are those of `penstock.envelopes.upsert`, and a test compares the two on random topics: Spark computes the
changes of many messages for a table, and this module computes those of some messages for readers of changes. An
envelope without state makes one image of each message, so a batch may end at any message. The image of a truncate
record has no row.

ENVELOPE DEBEZIUM has no counterpart here: which records are repeated follows from its state, which is in the base
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.envelopes.debezium_records import AFTER_MISSING, OP_UNKNOWN, OPS
from penstock.envelopes.messages import MOST_PARTITIONS, OFFSET_BITS, OUT_OF_RANGE
from penstock.envelopes.shape import (
    KEY_MISMATCH,
    KEY_MISSING,
    PLACEHOLDER_BYTES,
    PLACEHOLDER_ITEMS,
    PLACEHOLDER_TEXTS,
    key_field_text,
    placeholder_text,
)
from penstock.envelopes.upsert import NULL_VALUE, TRUNCATED, VALUE_MISSING
from penstock.model import Image, IncludedColumn, TableSchema, image_schema

__all__ = ["ArrowImages", "MessageBatch", "append_images", "debezium_upsert_images", "upsert_images"]


@dataclass(frozen=True)
class MessageBatch:
    """Decoded messages, in the order of their images; see `penstock.envelopes.messages`."""

    key: pa.StructArray | None
    """None: keys are not read."""
    value: pa.StructArray
    tombstone: pa.BooleanArray
    tick: pa.Int64Array
    partition: pa.Int32Array
    offset: pa.Int64Array
    timestamp: pa.TimestampArray
    problem: pa.StringArray
    headers: pa.ListArray | None = None
    only_partition: pa.BooleanArray | None = None
    """Whether the topic had one partition at the tick; None if that is unknown."""


@dataclass(frozen=True)
class ArrowImages:
    """The result for a batch: each message has one image, or is rejected."""

    images: pa.RecordBatch
    """In the schema `penstock.model.image_schema`."""
    rejected: pa.RecordBatch
    """``partition``, ``offset`` and ``problem``, in the order of messages."""


def append_images(messages: MessageBatch, schema: TableSchema, include: Sequence[IncludedColumn] = ()) -> ArrowImages:
    """Return an INSERTED image for each message with a value."""
    value = _included(messages.value, messages, include)
    problems = [(value.is_null(), VALUE_MISSING)]
    kinds = np.full(len(value), Image.INSERTED, np.int8)
    return _enveloped(messages, problems, kinds, _row(schema, None, value))


def upsert_images(messages: MessageBatch, schema: TableSchema, include: Sequence[IncludedColumn] = ()) -> ArrowImages:
    """Return the latest row of its key for each message."""
    key, gone = messages.key, messages.tombstone
    assert key is not None, "UPSERT needs the format of keys"
    value = _included(messages.value, messages, include)
    problems = [
        *_key_problems(key, schema),
        (pc.and_(pc.invert(gone), value.is_null()), NULL_VALUE),
        (_mismatch(key, value, schema), KEY_MISMATCH),
    ]
    return _enveloped(messages, problems, _upserted(gone), _row(schema, key, value))


def debezium_upsert_images(
    messages: MessageBatch, schema: TableSchema, include: Sequence[IncludedColumn] = ()
) -> ArrowImages:
    """Return the ``after`` row of each record as the latest row of its key."""
    assert messages.key is not None, "DEBEZIUM UPSERT needs the format of keys"
    key, record = _unwrapped(messages.key), _unwrapped(messages.value)
    after = _included(pc.struct_field(record, "after"), messages, include)
    op, there = pc.struct_field(record, "op").cast(pa.string()), pc.invert(messages.tombstone)
    truncates, deletes, skipped = _is(op, "t"), _is(op, "d"), _skipped(record, op)
    keyless = pc.and_(pc.or_(truncates, skipped), there)
    problems = [
        (pc.and_(there, pc.invert(pc.or_(_among(op, OPS), skipped))), OP_UNKNOWN),
        (truncates if messages.only_partition is None else pc.and_not(truncates, messages.only_partition), TRUNCATED),
        *((pc.and_(pc.invert(keyless), bad), text) for bad, text in _key_problems(key, schema)),
        (pc.and_(_among(op, ("c", "u", "r")), after.is_null()), AFTER_MISSING),
        (_mismatch(key, after, schema), KEY_MISMATCH),
        *_placeholder_problems(after, pc.and_(op.is_valid(), pc.invert(deletes))),
    ]
    gone = pc.or_(messages.tombstone, deletes)
    row = _key_only(_row(schema, key, after), gone, schema)
    row = pa.StructArray.from_arrays(row.flatten(), fields=list(row.type), mask=truncates)
    kinds = np.where(truncates.to_numpy(zero_copy_only=False), int(Image.TRUNCATE), _upserted(gone)).astype(np.int8)
    return _enveloped(messages, problems, kinds, row, skipped)


# -- images ------------------------------------------------------------------------------------------------------------


def _enveloped(
    messages: MessageBatch,
    problems: Sequence[tuple[pa.BooleanArray, str]],
    kinds: np.ndarray,
    row: pa.StructArray,
    skipped: pa.BooleanArray | None = None,
) -> ArrowImages:
    """Return the images of the messages without a problem; the first problem of a message counts."""
    beyond = pc.or_(
        pc.greater_equal(messages.partition, MOST_PARTITIONS), pc.greater_equal(messages.offset, 1 << OFFSET_BITS)
    )
    problem = messages.problem
    for bad, text in ((beyond, OUT_OF_RANGE), *problems):
        problem = pc.if_else(pc.and_(problem.is_null(), bad), text, problem)
    fine, count = problem.is_null(), len(problem)
    ordinal = pc.bit_wise_or(pc.shift_left(messages.partition.cast(pa.int64()), OFFSET_BITS), messages.offset)
    schema = image_schema(pa.schema(list(row.type)))
    none = pa.nulls(count, schema.field("_unchanged").type)
    xid = pa.array(np.zeros(count, np.int64))
    columns = [messages.tick, ordinal, pa.array(kinds), xid, messages.timestamp, none, row]
    shown = fine if skipped is None else pc.and_(fine, pc.invert(skipped))
    images = pa.RecordBatch.from_arrays(columns, schema=schema).filter(shown)
    place = {"partition": messages.partition, "offset": messages.offset, "problem": problem}
    return ArrowImages(images, pa.RecordBatch.from_pydict(place).filter(pc.invert(fine)))


def _row(schema: TableSchema, key: pa.StructArray | None, value: pa.StructArray) -> pa.StructArray:
    """Return rows with key columns from the key and the others from the value."""
    columns = []
    for field in schema.columns:
        held = key if key is not None and field.name in schema.key else value
        found = pc.struct_field(held, field.name)
        columns.append(found if found.type == field.type else found.cast(field.type))
    return pa.StructArray.from_arrays(columns, fields=list(schema.columns))


def _key_only(row: pa.StructArray, gone: pa.BooleanArray, schema: TableSchema) -> pa.StructArray:
    """Return rows in which all columns except the key are null where a row is `gone`."""
    columns = [
        column if field.name in schema.key else _without(column, gone)
        for field, column in zip(schema.columns, row.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(schema.columns))


def _without(column: pa.Array, gone: pa.BooleanArray) -> pa.Array:
    kept = np.flatnonzero(~gone.to_numpy(zero_copy_only=False))
    if len(kept) == len(column):
        return column
    places = np.where(gone.to_numpy(zero_copy_only=False), 0, np.arange(len(column)))
    return column.take(pa.array(places, mask=gone.to_numpy(zero_copy_only=False)))


def _upserted(gone: pa.BooleanArray) -> np.ndarray:
    is_gone = gone.to_numpy(zero_copy_only=False)
    return np.where(is_gone, Image.DELETED_KEY, Image.UPDATED).astype(np.int8)


# -- INCLUDE -----------------------------------------------------------------------------------------------------------


def _included(value: pa.StructArray, messages: MessageBatch, include: Sequence[IncludedColumn]) -> pa.StructArray:
    """Return values with these columns; null stays null. See `penstock.envelopes.include_columns`."""
    if not include:
        return value
    own = [(field.name, pc.struct_field(value, field.name)) for field in value.type]
    more = [(column.name, _metadata(column, messages)) for column in include]
    names, columns = zip(*own, *more, strict=True)
    return pa.StructArray.from_arrays(list(columns), names=list(names), mask=value.is_null())


def _metadata(column: IncludedColumn, messages: MessageBatch) -> pa.Array:
    if column.what != "key":
        found: pa.Array = getattr(messages, column.what)
        return found
    assert messages.key is not None, "INCLUDE KEY needs the format of keys"
    return pc.struct_field(messages.key, [0]) if messages.key.type.num_fields == 1 else messages.key


# -- records -----------------------------------------------------------------------------------------------------------


def _unwrapped(record: pa.StructArray) -> pa.StructArray:
    """Return records, or keys, without the schema with which Connect's JSON converter may wrap them."""
    names = {field.name for field in record.type}
    if not names <= {"schema", "payload"} or "payload" not in names:
        return record
    payload = pc.struct_field(record, "payload")
    return payload if pa.types.is_struct(payload.type) else record


def _skipped(record: pa.StructArray, op: pa.Array) -> pa.BooleanArray:
    """Return which records are about no row: see `penstock.envelopes.debezium_records`."""
    names = {field.name for field in record.type}
    if "ts_ms" not in names:
        return _is(op, "m")
    rows = [pc.struct_field(record, name).is_null() for name in ("before", "after", "source") if name in names]
    return pc.or_(_is(op, "m"), reduce(pc.and_, [op.is_null(), *rows], pc.struct_field(record, "ts_ms").is_valid()))


def _is(values: pa.Array, text: str) -> pa.BooleanArray:
    return pc.fill_null(pc.equal(values, text), fill_value=False)


def _among(values: pa.Array, texts: Sequence[str]) -> pa.BooleanArray:
    return pc.is_in(values, value_set=pa.array(texts, pa.string()), skip_nulls=True)


# -- problems ----------------------------------------------------------------------------------------------------------


def _key_problems(key: pa.StructArray, schema: TableSchema) -> list[tuple[pa.BooleanArray, str]]:
    fields = [(pc.struct_field(key, name).is_null(), key_field_text(name)) for name in schema.key]
    return [(key.is_null(), KEY_MISSING), *fields]


def _mismatch(key: pa.StructArray, value: pa.StructArray, schema: TableSchema) -> pa.BooleanArray:
    """Return where a value differs from its key in a common field."""
    names = {field.name for field in value.type}
    differs = [
        pc.invert(_same(pc.struct_field(key, name), pc.struct_field(value, name)))
        for name in schema.key
        if name in names
    ]
    return pc.and_(value.is_valid(), reduce(pc.or_, differs, pa.array(np.zeros(len(value), bool))))


def _same(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    """Return where two values are equal, as Spark compares them: null equals null, and NaN equals NaN."""
    same = pc.fill_null(pc.equal(one, other), fill_value=False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), fill_value=False))
    return pc.or_(same, pc.and_(one.is_null(), other.is_null()))


def _placeholder_problems(row: pa.StructArray, asked: pa.BooleanArray) -> list[tuple[pa.BooleanArray, str]]:
    """Return where Debezium wrote a placeholder, for each column that may have one."""
    found = []
    for field in row.type:
        marks = _placeholders(pc.struct_field(row, field.name))
        if marks is not None:
            found.append((pc.and_(asked, pc.fill_null(marks, fill_value=False)), placeholder_text(field.name)))
    return found


def _placeholders(values: pa.Array) -> pa.BooleanArray | None:
    """Return which values are the placeholder of their type; None for types without one."""
    kind = values.type
    if pa.types.is_string(kind):
        return _among(values, PLACEHOLDER_TEXTS)
    if pa.types.is_binary(kind):
        return pc.equal(values, PLACEHOLDER_BYTES)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return pc.map_lookup(values, PLACEHOLDER_TEXTS[0], "all").is_valid()
    return _item_placeholders(values) if pa.types.is_list(kind) else None


def _item_placeholders(values: pa.ListArray) -> pa.BooleanArray | None:
    kind = values.type.value_type
    if pa.types.is_string(kind):
        return _any_item(values, _among(pc.list_flatten(values), PLACEHOLDER_ITEMS))
    if pa.types.is_binary(kind):
        return _any_item(values, pc.fill_null(pc.equal(pc.list_flatten(values), PLACEHOLDER_BYTES), fill_value=False))
    if kind not in (pa.date32(), pa.int32(), pa.int64()):
        return None
    bytes_ = np.frombuffer(PLACEHOLDER_BYTES, np.uint8).astype(np.int64)
    rows = np.flatnonzero(pc.fill_null(pc.list_value_length(values), -1).to_numpy() == len(bytes_))
    items = pc.list_flatten(values.take(pa.array(rows)))
    numbers = pc.fill_null(
        items.cast(pa.int32()).cast(pa.int64()) if kind == pa.date32() else items.cast(pa.int64()), -1
    )
    marks = np.zeros(len(values), bool)
    marks[rows] = (numbers.to_numpy().reshape(-1, len(bytes_)) == bytes_).all(axis=1)
    return pa.array(marks)


def _any_item(values: pa.ListArray, marked: pa.BooleanArray) -> pa.BooleanArray:
    rows = pc.list_parent_indices(values).to_numpy()[marked.to_numpy(zero_copy_only=False)]
    marks = np.zeros(len(values), bool)
    marks[rows] = True
    return pa.array(marks)
