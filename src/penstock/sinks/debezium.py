"""ENVELOPE DEBEZIUM: the messages that Debezium's Postgres connector writes with its default settings.

| change | messages |
|---|---|
| row of the snapshot | op ``r`` |
| INSERT | op ``c`` |
| UPDATE | op ``u``; with the replica identity FULL also the old row, as ``before`` |
| UPDATE of the key | op ``d`` and a tombstone of the old key, then op ``c`` of the new key |
| DELETE | op ``d`` and a tombstone |
| TRUNCATE | none, as with Debezium's default ``skipped.operations=t`` |

::

    images ─▶ columns as Debezium represents them (`penstock.sinks.debezium_types`) ─▶ before, after ┐
           └▶ source, op, ts_ms … ───────────────────────────────────────────────────────────────────┴▶ SinkMessages

    messages of all tables ─┬─ with_transactions ────▶ the same with their transaction block
                            └─ transaction_messages ─▶ BEGIN and END of each transaction

**Old rows.** With the default replica identity, Postgres sends the key of a deleted row alone. The other columns are
null; a column that is declared NOT NULL has the value that Debezium puts there: 0, an empty text, 1970.

**TOAST.** A value that did not change, and that Postgres therefore did not send, is taken from the old row if that has
it. Otherwise it is Debezium's placeholder: ``__debezium_unavailable_value``. Debezium fails on types that have no
placeholder (numeric, and arrays of numeric, timestamp, boolean …); these are null here.

**NOT NULL** columns are required in the schema, as in Debezium. The constraint may be dropped upstream, which the log
does not show. A column with a null in a new row is optional in the messages of that batch.

**Differences.** The log has no position for each change: ``lsn``, both numbers of ``sequence`` and the position in the
id of the transaction are the commit position of the transaction. Default values of columns are not in the schema. Rows
of a snapshot have ``snapshot`` = ``true``, also the first and the last one, and no ``txId``. Messages have no headers
(``__debezium.newkey``, ``__debezium.oldkey``). ``ts_ms`` and so on are the time at which the batch was converted. See
`penstock.sinks.debezium_types` for differences between types.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.rescued_texts import text_of, with_texts
from penstock.model import Image, TableSchema, is_not_null, is_rescuable, is_rescued
from penstock.sinks.debezium_types import UNAVAILABLE, DebeziumType, connect_field, debezium_type
from penstock.sinks.messages import Flags, SinkMessages, changed_keys, image_kinds, some_columns

__all__ = [
    "DEBEZIUM_VERSION",
    "TRANSACTION_KEY",
    "TRANSACTION_VALUE",
    "DebeziumTable",
    "debezium_messages",
    "transaction_messages",
    "with_transactions",
]

DEBEZIUM_VERSION = "3.6.1.Final"
"""The version of Debezium whose messages are written."""
TRANSACTION_KEY = "io.debezium.connector.common.TransactionMetadataKey"
TRANSACTION_VALUE = "io.debezium.connector.common.TransactionMetadataValue"
"""The names of the schemas of the transaction topic; their version is 1."""

_Numbers = npt.NDArray[np.int64]

_PARTIAL = (Image.BEFORE_KEY, Image.DELETED_KEY)
_OLD = (Image.BEFORE, Image.BEFORE_KEY)
_DELETED = (Image.DELETED, Image.DELETED_KEY)
_NEW = (Image.UPDATED, Image.INSERTED, Image.COPIED)
_OPERATIONS = {**dict.fromkeys((*_OLD, *_DELETED), "d"), Image.UPDATED: "u", Image.INSERTED: "c", Image.COPIED: "r"}
_SNAPSHOT = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


@dataclass(frozen=True)
class DebeziumTable:
    """A table whose changes are written, and its names in the messages."""

    schema: TableSchema
    """The columns of the images, and the upstream table."""
    key: tuple[str, ...]
    """The columns of the message key; empty for messages without keys."""
    topic: str
    """The prefix of the names of schemas, as in ``shop.public.orders``."""
    server: str
    """The source's ``name``: in Debezium, the option ``topic.prefix``."""
    database: str
    version: str = DEBEZIUM_VERSION
    connector: str = "postgresql"
    tombstones: bool = True
    """Whether a tombstone follows each DELETE (Debezium's option ``tombstones.on.delete``)."""

    @property
    def key_name(self) -> str:
        """The name of the schema of keys."""
        return f"{self.topic}.Key"

    @property
    def value_name(self) -> str:
        """The name of the schema of values, whose version is 2."""
        return f"{self.topic}.Envelope"


def debezium_messages(images: pa.RecordBatch, table: DebeziumTable, now: int | None = None) -> SinkMessages:
    """Return the messages of images of whole changes; `now` is the time in nanoseconds since 1970."""
    now = time.time_ns() if now is None else now
    kinds, rows = image_kinds(images), images.column("row")
    numbers, is_tombstone = _places(kinds, rows, table)
    converted = _converted(images, kinds, table)
    key = None
    if table.key:
        key = _required(_taken(some_columns(converted, table.key), numbers, np.ones(len(numbers), np.bool_)))
    columns = [
        *_old_and_new(converted, kinds, numbers, table),
        _source(images, kinds, numbers, table, now),
        pa.nulls(len(numbers), _TRANSACTION.type),
        _operations(kinds, numbers),
        *_times(len(numbers), now),
    ]
    fields = [
        *(connect_field(pa.field(name, converted.type), f"{table.topic}.Value") for name in ("before", "after")),
        connect_field(
            pa.field("source", columns[2].type, nullable=False), "io.debezium.connector.postgresql.Source", 1
        ),
        _TRANSACTION,
        pa.field("op", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    fields = [field.with_type(column.type) for field, column in zip(fields, columns, strict=True)]
    values = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(is_tombstone))
    positions, ordinals = (images.column(name) for name in ("_lsn", "_ordinal"))
    return SinkMessages(positions.to_numpy()[numbers], pc.fill_null(ordinals, 0).to_numpy()[numbers], values, key)


def _places(kinds: npt.NDArray[np.int8], rows: pa.StructArray, table: DebeziumTable) -> tuple[_Numbers, Flags]:
    """Return the image of each message, and whether it is a tombstone."""
    old = np.flatnonzero(np.isin(kinds, _OLD))
    counts = np.isin(kinds, _NEW).astype(np.int64)
    removing = 2 if table.tombstones else 1
    counts[np.isin(kinds, _DELETED)] = removing
    counts[old] = removing * (changed_keys(rows, table.key, old) if table.key else np.zeros(len(old), np.int64))
    numbers = np.repeat(np.arange(len(kinds)), counts)
    is_tombstone = np.zeros(len(numbers), np.bool_)
    is_tombstone[1:] = numbers[1:] == numbers[:-1]
    return numbers, is_tombstone


# -- rows --------------------------------------------------------------------------------------------------------------


def _converted(images: pa.RecordBatch, kinds: npt.NDArray[np.int8], table: DebeziumTable) -> pa.StructArray:
    """Return the rows of all images, with the columns as Debezium represents them."""
    rows = images.column("row")
    columns_of_rows = dict(zip(rows.type.names, rows.flatten(), strict=True))
    omitted = _omitted(images)
    has_old = np.concatenate([[False], kinds[:-1] == Image.BEFORE]) if len(kinds) else np.zeros(0, np.bool_)
    is_new = pa.array(np.isin(kinds, _NEW))
    is_partial = pa.array(np.isin(kinds, _PARTIAL)) if np.any(np.isin(kinds, _PARTIAL)) else None
    fields, columns = [], []
    for place, column in enumerate(table.schema.columns):
        kind, values = debezium_type(column), columns_of_rows[column.name]
        missing = omitted.get(place)
        if missing is not None:
            values = values.take(pa.array(np.arange(len(kinds)) - (missing & has_old)))
        if is_rescued(column):
            values = _rescued(values, omitted, has_old, table.schema.columns)
        values = kind.convert(values)
        if missing is not None and kind.unavailable is not None:
            values = _replaced(values, missing & ~has_old, kind.unavailable, kind)
        is_required = (column.name in table.schema.key or is_not_null(column)) and not _has_null(values, is_new)
        if is_required and is_partial is not None and kind.fallback is not None:
            values = _replaced(values, pc.and_(is_partial, values.is_null()), kind.fallback, kind)
        fields.append(kind.field(column.name, not is_required))
        columns.append(values)
    return pa.StructArray.from_arrays(columns, fields=fields)


def _rescued(maps: pa.MapArray, omitted: dict[int, Flags], has_old: Flags, columns: pa.Schema) -> pa.Array:
    """Return the texts of rescued values, also of omitted ones: from the old row, or Debezium's placeholder."""
    texts = {}
    for place, missing in omitted.items():
        field = columns.field(place)
        if is_rescuable(field.type):
            old = pa.array(np.arange(len(maps)) - 1, mask=~(missing & has_old))
            placeholder = pa.array([None, UNAVAILABLE]).take(pa.array((missing & ~has_old).astype(np.int8)))
            texts[field.name] = pc.coalesce(text_of(maps, field.name).take(old), placeholder)
    return with_texts(maps, texts)


def _omitted(images: pa.RecordBatch) -> dict[int, Flags]:
    """Return which rows omit an unchanged TOAST value, by the index of its column."""
    lists = images.column("_unchanged")
    if lists.null_count == len(lists):
        return {}
    columns, rows = pc.list_flatten(lists).to_numpy(), pc.list_parent_indices(lists).to_numpy()
    found = {}
    for column in np.unique(columns):
        found[int(column)] = np.zeros(len(lists), np.bool_)
        found[int(column)][rows[columns == column]] = True
    return found


def _has_null(values: pa.Array, where: pa.BooleanArray) -> bool:
    return bool(values.null_count) and bool(pc.any(pc.and_(values.is_null(), where)).as_py())


def _replaced(values: pa.Array, where: Flags | pa.Array, value: object, kind: DebeziumType) -> pa.Array:
    """Return the values with one value in some of the rows."""
    one = pa.array([value], kind.arrow)
    both = pa.concat_arrays([values, one])
    chosen = np.where(np.asarray(where), len(values), np.arange(len(values)))
    return both.take(pa.array(chosen))


def _old_and_new(
    converted: pa.StructArray, kinds: npt.NDArray[np.int8], numbers: _Numbers, table: DebeziumTable
) -> tuple[pa.StructArray, pa.StructArray]:
    """Return the old and the new row of each message; null where it has none."""
    kind = kinds[numbers]
    is_new = np.isin(kind, _NEW)
    before = numbers - (kind == Image.UPDATED)
    has_before = ~is_new | ((kind == Image.UPDATED) & (numbers > 0) & np.isin(kinds[before], _OLD))
    if table.key:  # a changed key is a DELETE and an INSERT
        has_before &= ~(is_new & np.isin(before, numbers))
    return _taken(converted, before, has_before), _taken(converted, numbers, is_new)


def _taken(rows: pa.StructArray, numbers: _Numbers, where: Flags) -> pa.StructArray:
    """Return the rows with these numbers; null where they are not wanted."""
    if not where.any():
        return pa.nulls(len(numbers), rows.type)
    if where.all() and len(numbers) == len(rows) and np.array_equal(numbers, np.arange(len(rows))):
        return rows
    return rows.take(pa.array(numbers, mask=~where))


def _required(keys: pa.StructArray) -> pa.StructArray:
    """Return keys, of which none is null."""
    return pa.StructArray.from_arrays(keys.flatten(), fields=list(keys.type))


def _operations(kinds: npt.NDArray[np.int8], numbers: _Numbers) -> pa.DictionaryArray:
    letters = [_OPERATIONS.get(Image(kind), "") for kind in range(len(Image))]
    codes = kinds[numbers].astype(np.int64)
    created = (codes[1:] == Image.UPDATED) & np.isin(kinds[numbers[:-1]], _OLD)
    codes[1:][created] = Image.INSERTED
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(letters))


# -- source and times --------------------------------------------------------------------------------------------------

_TRANSACTION = connect_field(
    pa.field(
        "transaction",
        pa.struct(
            [
                pa.field("id", pa.string(), nullable=False),
                pa.field("total_order", pa.int64(), nullable=False),
                pa.field("data_collection_order", pa.int64(), nullable=False),
            ]
        ),
    ),
    "event.block",
    1,
)
_SOURCE = [
    pa.field("version", pa.string(), nullable=False),
    pa.field("connector", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),
    pa.field("ts_ms", pa.int64(), nullable=False),
    connect_field(
        pa.field("snapshot", pa.string()),
        "io.debezium.data.Enum",
        1,
        parameters={"allowed": _SNAPSHOT},
        default="false",
    ),
    pa.field("db", pa.string(), nullable=False),
    pa.field("sequence", pa.string()),
    pa.field("ts_us", pa.int64()),
    pa.field("ts_ns", pa.int64()),
    pa.field("schema", pa.string(), nullable=False),
    pa.field("table", pa.string(), nullable=False),
    pa.field("txId", pa.int64()),
    pa.field("lsn", pa.int64()),
    pa.field("xmin", pa.int64()),
    pa.field("origin", pa.string()),
    pa.field("origin_lsn", pa.int64()),
]


def _source(
    images: pa.RecordBatch, kinds: npt.NDArray[np.int8], numbers: _Numbers, table: DebeziumTable, now: int
) -> pa.DictionaryArray:
    """Return the source of each message; messages of one transaction share it."""
    is_first, number = _transactions(images, kinds)
    first = images.select(["_lsn", "_xid", "_committed_at"]).take(pa.array(np.flatnonzero(is_first)))
    count, positions = len(first), first.column("_lsn")
    is_copied = pa.array(kinds[is_first] == Image.COPIED)
    upstream = table.schema.table
    micros = pc.fill_null(first.column("_committed_at").view(pa.int64()), now // 1000).to_numpy()
    columns = [
        *(pa.repeat(text, count) for text in (table.version, table.connector, table.server)),
        pa.array(micros // 1000),
        pc.if_else(is_copied, "true", "false"),
        pa.repeat(table.database, count),
        _sequences(positions, is_copied),
        pa.array(micros),
        pa.array(micros * 1000),
        *(pa.repeat(text, count) for text in (upstream.schema, upstream.name)),
        first.column("_xid"),
        positions,
        pa.nulls(count, pa.int64()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.int64()),
    ]
    distinct = pa.StructArray.from_arrays(columns, fields=_SOURCE)
    return pa.DictionaryArray.from_arrays(pa.array(number[numbers].astype(np.int32)), distinct)


def _transactions(images: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> tuple[Flags, _Numbers]:
    """Return which images begin a transaction, and the number of the transaction of each; the snapshot is one."""
    is_first = np.ones(len(kinds), np.bool_)
    differs = [kinds == Image.COPIED]
    for name in ("_lsn", "_xid", "_committed_at"):
        column = images.column(name)
        column = column if pa.types.is_integer(column.type) else column.view(pa.int64())
        differs += [column.is_valid().to_numpy(zero_copy_only=False), pc.fill_null(column, 0).to_numpy()]
    is_first[1:] = np.logical_or.reduce([each[1:] != each[:-1] for each in differs])
    return is_first, np.cumsum(is_first) - 1


def _times(count: int, now: int) -> list[pa.Array]:
    zeros = pa.array(np.zeros(count, np.int8))
    return [pa.DictionaryArray.from_arrays(zeros, pa.array([value])) for value in (now // 1_000_000, now // 1000, now)]


def _sequences(positions: pa.Array, is_copied: pa.Array) -> pa.StringArray:
    """Return a position after the previous commit, and the own one, as a JSON array; snapshots have no commit.

    The first is the position just before the own commit. Consumers use it to tell whether a change is part of a
    transaction that they know, so it must be at or after the previous commit, and before the own one.
    """
    own, before = (
        pc.binary_join_element_wise('"', each.cast(pa.string()), '"', "")
        for each in (positions, pc.subtract(positions, 1))
    )
    return pc.binary_join_element_wise("[", pc.if_else(is_copied, "null", before), ",", own, "]", "")


# -- transactions ------------------------------------------------------------------------------------------------------


def with_transactions(tables: Sequence[SinkMessages]) -> list[SinkMessages]:
    """Return messages of `debezium_messages`, of several tables and of whole transactions, with transaction blocks.

    Events are numbered in the transaction and in their table, from 1. Tombstones and rows of a snapshot have no block.
    The messages of a table may be in several parts, in order.
    """
    owner = np.repeat(_owners(tables), [len(each) for each in tables])
    if not len(owner):
        return list(tables)
    positions = np.concatenate([each.positions for each in tables])
    ordinals = np.concatenate([each.ordinals for each in tables])
    is_event = np.concatenate([_is_event(each) for each in tables])
    order = np.lexsort((owner, ordinals, positions))  # stable: the messages of one change keep their order
    order = order[is_event[order]]
    totals, in_table = np.zeros(len(owner), np.int64), np.zeros(len(owner), np.int64)
    totals[order] = _ranks(positions[order])
    grouped = order[np.argsort(owner[order], kind="stable")]
    in_table[grouped] = _ranks(positions[grouped], owner[grouped])
    ends = np.cumsum([len(each) for each in tables])[:-1]
    parts = zip(tables, np.split(totals, ends), np.split(in_table, ends), strict=True)
    return [_with_blocks(each, total, number) for each, total, number in parts]


def _owners(parts: Sequence[SinkMessages]) -> _Numbers:
    """Return a number for the table of each part."""
    known: dict[tuple[str, ...], int] = {}
    return np.array([known.setdefault(_table_of(part), len(known)) for part in parts], np.int64)


def _table_of(part: SinkMessages) -> tuple[str, ...]:
    """Return schema and name of the table; all messages have them, tombstones too. Empty without messages."""
    if not len(part):
        return ()
    source = part.values.field("source")[0].as_py()
    return source["schema"], source["table"]


def _is_event(messages: SinkMessages) -> Flags:
    is_event = pc.and_(messages.values.is_valid(), pc.not_equal(_field(messages, "op"), "r"))
    flags: Flags = is_event.to_numpy(zero_copy_only=False)
    return flags


def _field(messages: SinkMessages, name: str) -> pa.Array:
    """Return a field that messages share, for each of them."""
    shared = messages.values.field(name)
    return shared.dictionary.take(shared.indices)


def _ranks(*groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of each element in its run of equal elements, from 1."""
    count = len(groups[0])
    begins = np.ones(count, np.bool_)
    begins[1:] = np.logical_or.reduce([each[1:] != each[:-1] for each in groups])
    starts = np.flatnonzero(begins)
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count))) + 1


def _transaction_ids(source: pa.StructArray) -> pa.StringArray:
    xids, positions = (source.field(name).cast(pa.string()) for name in ("txId", "lsn"))
    return pc.binary_join_element_wise(xids, positions, ":")


def _with_blocks(
    messages: SinkMessages, totals: npt.NDArray[np.int64], in_table: npt.NDArray[np.int64]
) -> SinkMessages:
    values, ids = messages.values, _transaction_ids(_field(messages, "source"))
    columns = [ids, pa.array(totals), pa.array(in_table)]
    blocks = pa.StructArray.from_arrays(columns, fields=list(_TRANSACTION.type), mask=pa.array(totals == 0))
    parts = [blocks if each.name == "transaction" else values.field(each.name) for each in values.type]
    made = pa.StructArray.from_arrays(parts, fields=list(values.type), mask=values.is_null())
    return replace(messages, values=made)


_COLLECTION = connect_field(
    pa.field(
        "item",
        pa.struct(
            [
                pa.field("data_collection", pa.string(), nullable=False),
                pa.field("event_count", pa.int64(), nullable=False),
            ]
        ),
    ),
    "event.collection",
    1,
)
_STATUS = [
    pa.field("status", pa.string(), nullable=False),
    pa.field("id", pa.string(), nullable=False),
    pa.field("event_count", pa.int64()),
    pa.field("data_collections", pa.list_(_COLLECTION)),
    pa.field("ts_ms", pa.int64(), nullable=False),
]


def transaction_messages(tables: Sequence[SinkMessages]) -> SinkMessages:
    """Return the messages of the transaction topic: BEGIN and END of each transaction of these messages.

    The messages are those of `debezium_messages`, of several tables and of whole transactions. A transaction without
    events has no messages; Debezium reports it with a count of zero.
    """
    owners = _owners(tables).tolist()
    events = pa.concat_tables([_events(each, owner) for each, owner in zip(tables, owners, strict=True)])
    counts = events.group_by(["position", "owner"]).aggregate([("name", "min"), ("position", "count")])
    counts = counts.sort_by([("position", "ascending"), ("owner", "ascending")]).combine_chunks()
    each = events.group_by("position").aggregate([("id", "min"), ("ts_ms", "min"), ("ordinal", "max"), ("id", "count")])
    each = each.sort_by("position").combine_chunks()
    columns = {name: _column(each, name) for name in each.column_names}
    collections = pa.StructArray.from_arrays(
        [_column(counts, "name_min"), _column(counts, "position_count")], fields=list(_COLLECTION.type)
    )
    positions = columns["position"].to_numpy()
    offsets = np.searchsorted(_column(counts, "position").to_numpy(), positions).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(np.append(offsets, np.int32(len(collections)))), collections)
    # BEGIN and END of a transaction are neighbours; BEGIN has no counts.
    twice = np.repeat(np.arange(len(positions)), 2)
    is_begin = np.arange(len(twice)) % 2 == 0
    ends = pa.array(twice, mask=is_begin)
    both = pa.array(twice)
    ids = columns["id_min"].take(both)
    status = pa.array(["BEGIN", "END"]).take(pa.array((~is_begin).astype(np.int64)))
    counted = [columns["id_count"].take(ends), lists.take(ends).cast(_STATUS[3].type)]
    values = pa.StructArray.from_arrays([status, ids, *counted, columns["ts_ms_min"].take(both)], fields=_STATUS)
    keys = pa.StructArray.from_arrays([ids], fields=[pa.field("id", pa.string(), nullable=False)])
    ordinals = np.where(is_begin, 0, columns["ordinal_max"].to_numpy()[twice])
    return SinkMessages(positions[twice], ordinals, values, keys)


def _events(messages: SinkMessages, owner: int) -> pa.Table:
    """Return the events of a table: without tombstones and rows of a snapshot."""
    source = _field(messages, "source")
    names = pc.binary_join_element_wise(source.field("schema"), source.field("table"), ".")
    found = {
        "position": pa.array(messages.positions),
        "ordinal": pa.array(messages.ordinals),
        "owner": pa.repeat(pa.scalar(owner, pa.int64()), len(messages)),
        "name": names,
        "id": _transaction_ids(source),
        "ts_ms": source.field("ts_ms"),
    }
    return pa.table(found).filter(pa.array(_is_event(messages)))


def _column(table: pa.Table, name: str) -> pa.Array:
    chunked = table.column(name)
    return chunked.chunk(0) if chunked.num_chunks else pa.array([], chunked.type)
