"""Messages as columns: the transaction of each message, and its order in it. Decoded values in, numbers out.

A message of a data topic is one of three:

- a **change** of a transaction: its transaction, the commit `before` it (see the package), its `order` in it;
- a **copied row** of a snapshot, which has no transaction. `before` is the position of the snapshot;
- one that **passes**: a tombstone, which belongs to the message before it, a row of an incremental snapshot, and any
  other message without a transaction. It may be anywhere.

In the metadata topic only ENDs count. They contain everything that a BEGIN contains.

Transaction ids of Debezium become two numbers, the transaction and a position that increases from one to the next:

======== ========================= ============================== ===========================================
upstream id                        transaction                    position
======== ========================= ============================== ===========================================
Postgres ``571:53195832``          the transaction id             the LSN: of an END, that of the commit
MySQL    ``0e4d…-02010a22a99e:10`` the number of the GTID         the same; comparable on one server only
MySQL    ``file=bin.000003,pos=5`` number of the file, and offset the same
======== ========================= ============================== ===========================================

Other connectors have ids without an order: repeated transactions could not be distinguished from new ones without
storing all of them. They are rejected, as is any id in another format.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError

if TYPE_CHECKING:
    from penstock.formats import Decoded

__all__ = [
    "UNKNOWN",
    "Ends",
    "Ids",
    "Ints",
    "MessageColumns",
    "MessageKind",
    "Upstream",
    "joined",
    "read_ends",
    "read_ids",
    "read_messages",
]

Ints = npt.NDArray[np.int64]
UNKNOWN = -2
"""The commit before a change, if Debezium does not know it; see `UnpositionedChanges`."""
_SEQUENCE = r'^\[\s*(?:null|"?(?P<commit>\d{1,19})"?)\s*,'
_COLUMNS = ("offsets", "kinds", "which", "before", "order", "snapshot", "last", "times")
_COPIED = ["true", "first", "first_in_data_collection", "last_in_data_collection", "last"]
_REWRITE_HINT = "Have Debezium rewrite the topic, or remove TRANSACTION METADATA."


class MessageKind(enum.IntEnum):
    """The kind of a message, see the module."""

    PASSES = 0
    CHANGE = 1
    COPIED = 2


@dataclass(frozen=True)
class MessageColumns:
    """Messages of one partition, in offset order."""

    offsets: Ints
    kinds: Ints
    which: Ints
    """Of a change: its transaction."""
    before: Ints
    """Of a change: the commit before its transaction. Of a copied row: the position of the snapshot; -1 if it cannot be
    compared with transactions."""
    order: Ints
    """Of a change: its place in its transaction, from 1."""
    snapshot: Ints
    """Of a copied row: its snapshot, as a number that increases from one to the next; otherwise -1."""
    last: npt.NDArray[np.bool_]
    """Whether it is the last row of its snapshot, across all tables."""
    times: Ints
    """Of a copied row: when Debezium read it, in milliseconds; otherwise -1."""
    server: str = ""
    """The server of these transactions, if known."""

    def chosen(self, which: npt.NDArray[Any]) -> MessageColumns:
        """Return the selected messages."""
        return replace(self, **{name: getattr(self, name)[which] for name in _COLUMNS})


@dataclass(frozen=True)
class Ends:
    """ENDs of the metadata topic, in offset order."""

    offsets: Ints
    which: Ints
    position: Ints
    """The position of the commit."""
    times: Ints
    """The time of the commit, in milliseconds."""
    collections: Sequence[str]
    """The tables whose events they count."""
    counts: Ints
    """The number of events: a row for each END, a column for each table."""
    server: str = ""


def joined(first: MessageColumns, then: MessageColumns) -> MessageColumns:
    """Return messages followed by later ones."""
    columns = {name: np.concatenate([getattr(first, name), getattr(then, name)]) for name in _COLUMNS}
    return replace(first, **columns, server=first.server or then.server)


def read_messages(topic: str, partition: int, offsets: Ints, decoded: Decoded) -> MessageColumns:
    """Return the columns of messages of a data topic."""
    _reject_undecodable(topic, partition, offsets, decoded)
    count = len(offsets)
    kinds, which, order = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    before, snapshot = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    names = _field(decoded.rows, "transaction", "id")
    changes = np.flatnonzero(pc.is_valid(names).to_numpy(zero_copy_only=False))
    ids = read_ids(topic, names.take(pa.array(changes)))
    if ids is not None:
        kinds[changes], which[changes] = MessageKind.CHANGE, ids.which
        order[changes] = _orders(topic, _field(decoded.rows, "transaction", "total_order").take(pa.array(changes)))
        before[changes] = ids.position - 1
        if ids.upstream is Upstream.POSTGRES:
            before[changes] = _commits(topic, _field(decoded.rows, "source", "sequence").take(pa.array(changes)))
    phase = pc.utf8_lower(_field(decoded.rows, "source", "snapshot").cast(pa.string()))
    is_copied = _true(pc.is_in(phase, pa.array(_COPIED))) & (kinds == MessageKind.PASSES)
    kinds[is_copied] = MessageKind.COPIED
    lsns = _field(decoded.rows, "source", "lsn").cast(pa.int64()).fill_null(-1).to_numpy()
    before[is_copied] = lsns[is_copied]
    snapshot[is_copied] = np.where(lsns >= 0, lsns, _binlog_places(decoded.rows))[is_copied]
    last = _true(pc.equal(phase, "last")) & is_copied
    times = np.where(is_copied, _field(decoded.rows, "ts_ms").cast(pa.int64()).fill_null(-1).to_numpy(), -1)
    if np.any(times[is_copied] < 0):
        raise _invalid(topic, "a snapshot row has no time (ts_ms)")
    return MessageColumns(offsets, kinds, which, before, order, snapshot, last, times, ids.server if ids else "")


def read_ends(topic: str, offsets: Ints, decoded: Decoded) -> Ends:
    """Return the ENDs among messages of the metadata topic."""
    _reject_undecodable(topic, 0, offsets, decoded)
    status = _field(decoded.rows, "status").cast(pa.string())
    if not _true(pc.or_kleene(pc.is_in(status, pa.array(["BEGIN", "END"])), pc.is_null(decoded.rows))).all():
        raise _invalid(topic, "status is neither BEGIN nor END")
    chosen = np.flatnonzero(_true(pc.equal(status, "END")))
    names = _field(decoded.rows, "id").take(pa.array(chosen))
    if names.null_count:
        raise _invalid(topic, "an END has no id")
    ids = read_ids(topic, names)
    nothing = np.zeros(0, np.int64)
    if ids is None:
        return Ends(nothing, nothing, nothing, nothing, (), np.zeros((0, 0), np.int64))
    times = _field(decoded.rows, "ts_ms").cast(pa.int64()).fill_null(0).to_numpy()[chosen]
    collections, counts = _counts(topic, _field(decoded.rows, "data_collections").take(pa.array(chosen)))
    return Ends(offsets[chosen], ids.which, ids.position, times, collections, counts, ids.server)


def _counts(topic: str, lists: pa.Array) -> tuple[list[str], Ints]:
    """Return the tables, and the number of events of each END in each of them."""
    if not pa.types.is_list(lists.type):
        raise _invalid(topic, "an END has no event counts (data_collections)")
    owners = pc.list_parent_indices(lists).to_numpy()
    parts = pc.list_flatten(lists)
    names = pc.struct_field(parts, "data_collection").cast(pa.string()).dictionary_encode()
    numbers = pc.struct_field(parts, "event_count").cast(pa.int64())
    if names.null_count or numbers.null_count:
        raise _invalid(topic, "an END has no event counts (data_collections)")
    counts = np.zeros((len(lists), len(names.dictionary)), np.int64)
    np.add.at(counts, (owners, names.indices.to_numpy()), numbers.to_numpy())
    return names.dictionary.to_pylist(), counts


def _commits(topic: str, sequences: pa.Array) -> Ints:
    """Return the commit before each change."""
    parts = pc.extract_regex(sequences.cast(pa.string()), _SEQUENCE)
    if parts.null_count:
        raise _invalid(topic, "a change has no preceding commit (source.sequence)")
    texts = pc.struct_field(parts, "commit")
    numbers: Ints = pc.if_else(pc.equal(texts, ""), str(UNKNOWN), texts).cast(pa.int64()).to_numpy()
    return numbers


def _orders(topic: str, orders: pa.Array) -> Ints:
    numbers: Ints = orders.cast(pa.int64()).fill_null(0).to_numpy()
    if np.any(numbers < 1):
        raise _invalid(topic, "a change has no order in its transaction (transaction.total_order)")
    return numbers


def _binlog_places(rows: pa.StructArray) -> Ints:
    """Return the binlog position of MySQL snapshot rows; 0 if there is none."""
    files = pc.extract_regex(_field(rows, "source", "file").cast(pa.string()), r"\.(?P<number>\d{1,6})$")
    numbers = pc.struct_field(files, "number").cast(pa.int64()).fill_null(0).to_numpy()
    places: Ints = numbers << 40 | _field(rows, "source", "pos").cast(pa.int64()).fill_null(0).to_numpy()
    return places


def _field(rows: pa.StructArray, *path: str) -> pa.Array:
    """Return a field of records, or of their payload; nulls if there is none."""
    found = [each for each in (_at(rows, path), _at(rows, ("payload", *path))) if each is not None]
    return pc.coalesce(*found) if found else pa.nulls(len(rows))


def _at(rows: pa.Array, path: Sequence[str]) -> pa.Array | None:
    for name in path:
        if not pa.types.is_struct(rows.type) or rows.type.get_field_index(name) < 0:
            return None
        rows = pc.struct_field(rows, name)
    return rows


def _true(values: pa.Array) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return result


def _reject_undecodable(topic: str, partition: int, offsets: Ints, decoded: Decoded) -> None:
    if decoded.problems.null_count == len(offsets):
        return
    first = int(np.flatnonzero(pc.is_valid(decoded.problems).to_numpy(zero_copy_only=False))[0])
    message = (
        f"could not decode the transaction of the message at offset {offsets[first]} of partition {partition} "
        f"of topic {topic}: {decoded.problems[first].as_py()}"
    )
    raise DefiniteError(message, _REWRITE_HINT)


def _invalid(topic: str, why: str) -> DefiniteError:
    return DefiniteError(f"topic {topic} has a message that is not valid Debezium output: {why}", _REWRITE_HINT)


_OFFSET_BITS = 40
"""Bits of a position in a binlog file; the remaining ones of 63 bits hold the number of the file."""
_NO_ORDER = (
    "TRANSACTION METADATA supports Postgres and MySQL with Debezium 2 or later. "
    "For other connectors, remove TRANSACTION METADATA."
)


class Upstream(enum.StrEnum):
    """The format of ids."""

    POSTGRES = r"^(?P<which>\d{1,18}):(?P<position>\d{1,19})$"
    GTID = r"^(?P<server>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}):(?P<position>\d{1,18})$"
    BINLOG = r"^file=.*\.(?P<file>\d{1,6}),pos=(?P<position>\d{1,12})$"


class Ids(NamedTuple):
    """Ids as numbers, one per transaction."""

    upstream: Upstream
    server: str
    """The server that assigned the numbers, if known; otherwise empty."""
    which: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


def read_ids(topic: str, ids: pa.StringArray) -> Ids | None:
    """Parse ids without nulls; return None if there are none."""
    if not len(ids):
        return None
    for upstream in Upstream:
        if pc.match_substring_regex(ids[:1], upstream.value)[0].as_py():
            return _read(topic, upstream, pc.extract_regex(ids, upstream.value))
    raise _unknown(topic)


def _read(topic: str, upstream: Upstream, parts: pa.StructArray) -> Ids:
    if parts.null_count:
        raise _unknown(topic)
    position = _numbers(topic, parts, "position")
    match upstream:
        case Upstream.POSTGRES:
            return Ids(upstream, "", _numbers(topic, parts, "which"), position)
        case Upstream.GTID:
            return Ids(upstream, _one_server(topic, parts), position, position)
    if np.any(position >> _OFFSET_BITS):
        raise _unknown(topic)
    places = _numbers(topic, parts, "file") << _OFFSET_BITS | position
    return Ids(upstream, "", places, places)


def _one_server(topic: str, parts: pa.StructArray) -> str:
    servers = pc.unique(pc.utf8_lower(pc.struct_field(parts, "server"))).to_pylist()
    if len(servers) > 1:
        message = f"topic {topic} has transactions of several MySQL servers: their GTIDs have no common order"
        raise DefiniteError(
            message, "Remove TRANSACTION METADATA, or have Debezium write separate topics for each server."
        )
    return str(servers[0])


def _numbers(topic: str, parts: pa.StructArray, name: str) -> npt.NDArray[np.int64]:
    try:
        numbers: npt.NDArray[np.int64] = pc.struct_field(parts, name).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        raise _unknown(topic) from None
    return numbers


def _unknown(topic: str) -> DefiniteError:
    return DefiniteError(f"topic {topic} has transaction ids that cannot be ordered", _NO_ORDER)
