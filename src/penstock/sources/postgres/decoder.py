"""From replication messages to chunks of the change log. Bytes in, values out: no I/O in here.

::

    messages ─scan─▶ changes, transactions ─by table─▶ split ─by column─▶ type kernels ─▶ Arrow ─▶ Chunk

Only whole transactions leave the decoder: what follows the last commit stays in the caller's buffer and is scanned
again with what comes next. When a transaction outgrows the buffer, its parts leave it as *staged* chunks, before the
commit and without an LSN; the change log shows them to nobody until the commit publishes them.

The schema of every table is given beforehand. A Relation message that differs from it, or a value that its
column's type cannot hold, ends that table with a definite error at that transaction; all others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.frames import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import ProtocolError, TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.postgres import scan
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.relation import Relation, RelationColumn, parse_relation
from penstock.sources.postgres.types import BadValue, ColumnCodec

__all__ = ["Decoded", "DecodedTable", "Decoder"]

_REPORT = "This server speaks a protocol that Penstock does not know: please report it with the server's version."
_TRANSACTIONS = transaction_schema()
_MOST_CHANGES = 1 << 18


@dataclass(frozen=True)
class DecodedTable:
    """A table as it was when its capture began, and its version in the change log."""

    schema: TableSchema
    columns: tuple[CapturedColumn, ...]
    version: int

    @classmethod
    def of(cls, table: CapturedTable, version: int) -> Self:
        """Take over a captured table."""
        return cls(table.table_schema(), table.columns, version)


@dataclass
class Decoded:
    """What one call of `Decoder.decode` found."""

    consumed: int = 0
    """Bytes of the buffer that are done with."""
    durable: Lsn | None = None
    """Every transaction up to here is in `chunks` or was staged before."""
    committed_at: int | None = None
    chunks: list[Chunk] = field(default_factory=list)
    open_chunks: list[Chunk] = field(default_factory=list)
    """Parts of the transaction `open_xid`, which is still in progress."""
    open_xid: int = 0
    staged: dict[int, Lsn] = field(default_factory=dict)
    errors: list[TableError] = field(default_factory=list)
    changes: int = 0
    more: bool = False
    """Whether the buffer holds more that could be decoded at once."""


@dataclass(frozen=True)
class _Failure:
    """A table that ends in a transaction (its index), for a reason."""

    slot: int
    transaction: int
    message: str
    remedy: str


class Decoder:
    """Decodes one replication stream; a new stream needs a new decoder."""

    def __init__(
        self, tables: Sequence[DecodedTable], start: Lsn, ended: Mapping[TableName, TableError] | None = None
    ) -> None:
        """Decode what follows `start`, without the tables that have `ended`."""
        self._start = start
        self._tables = list(tables)
        self._slots = {table.schema.table: slot for slot, table in enumerate(self._tables)}
        self._codecs: list[list[ColumnCodec]] = [[column.codec() for column in table.columns] for table in self._tables]
        self._ended = {self._slots[name] for name in (ended or {}) if name in self._slots}
        self._failures: list[_Failure] = []
        self._relations: dict[int, int] = {}
        self._ids = np.empty(0, np.int64)
        self._id_slots = np.empty(0, np.int32)
        self._state = np.zeros(scan.STATE_SIZE, np.int64)
        self._m_off, self._m_slot, self._m_tx = (np.empty(_MOST_CHANGES, np.int32) for _ in range(3))
        self._m_ord = np.empty(_MOST_CHANGES, np.int64)
        self._tx_lsn, self._tx_xid, self._tx_time = (np.empty(_MOST_CHANGES, np.int64) for _ in range(3))
        self._staged_xid = 0
        self._last = 0
        self._resume = np.zeros(scan.KEEPALIVE, np.int64)
        """The scanner's state at the first byte that is not consumed: in the staged transaction, if there is one."""

    def decode(self, buf: npt.NDArray[np.uint8], end: int, *, force: bool = False) -> Decoded:
        """Decode the messages in ``buf[:end]`` up to the last commit; `force` also takes what lies behind it."""
        state = self._state
        state[: scan.KEEPALIVE] = self._resume
        state[scan.KEEPALIVE :] = 0
        full = self._scan(buf, end)
        found = Decoded(consumed=int(state[scan.CLOSED_POSITION]), more=full)
        self._close(found, buf)
        if (force or full) and state[scan.IN_TRANSACTION] and found.consumed == 0:
            self._open(found, buf)
        self._end_failed(found, int(state[scan.CLOSED_TRANSACTIONS]))
        return found

    def _scan(self, buf: npt.NDArray[np.uint8], end: int) -> bool:
        """Scan to the end, reading Relation messages on the way; True when the tables of the scan are full."""
        while True:
            status = scan.scan(
                buf, end, self._ids, self._id_slots, self._m_off, self._m_slot, self._m_tx, self._m_ord,
                self._tx_lsn, self._tx_xid, self._tx_time, self._state,
            )  # fmt: skip
            if status == scan.RELATION:
                self._describe(buf)
            elif status in (scan.SCANNED, scan.TABLE_FULL):
                return bool(status == scan.TABLE_FULL)
            else:
                self._refuse(int(status), buf)

    def _refuse(self, status: int, buf: npt.NDArray[np.uint8]) -> None:
        at = int(self._state[scan.POSITION]) + 29
        kind = chr(buf[at]) if at < len(buf) else "?"
        what = {scan.UNKNOWN: "an unknown", scan.FOREIGN: "an undescribed table's"}.get(status, "a malformed")
        message = f"{what} replication message ({kind!r}) arrived from Postgres"
        raise ProtocolError(message, _REPORT)

    def _describe(self, buf: npt.NDArray[np.uint8]) -> None:
        """Take note of a Relation message and step over it."""
        at = int(self._state[scan.POSITION])
        length = int.from_bytes(buf[at : at + 4].tobytes(), "little")
        relation = parse_relation(buf[at + 29 : at + 4 + length].tobytes())
        self._relations[relation.id] = self._slot_for(relation)
        self._map_relations()
        self._state[scan.POSITION] = at + 4 + length

    def _slot_for(self, relation: Relation) -> int:
        slot = self._slots.get(relation.table, -1)
        if slot < 0 or slot in self._ended:
            return -1
        declared = tuple((c.name, c.type.oid, c.type.typmod) for c in self._tables[slot].columns)
        if tuple((c.name, c.oid, c.typmod) for c in relation.columns) != declared:
            self._fail(slot, int(self._state[scan.TRANSACTIONS]), _drift(self._tables[slot].columns, relation))
        elif relation.replica_identity not in ("d", "f"):
            why = "its replica identity is now NOTHING or an index"
            self._fail(slot, int(self._state[scan.TRANSACTIONS]), why)
        elif relation.replica_identity == "d" and _identity(relation.columns) != _identity(self._tables[slot].columns):
            self._fail(slot, int(self._state[scan.TRANSACTIONS]), "its primary key changed upstream")
        return slot

    def _fail(self, slot: int, transaction: int, why: str, remedy: str = "") -> None:
        table = self._tables[slot].schema.table
        remedy = remedy or "Drop the source and capture it again: its tables are then copied afresh."
        self._failures.append(_Failure(slot, transaction, f"capture of {table} stopped: {why}", remedy))

    def _map_relations(self) -> None:
        relations = sorted(self._relations.items())
        self._ids = np.array([oid for oid, _ in relations], np.int64)
        self._id_slots = np.array([-1 if s in self._ended else s for _, s in relations], np.int32)

    def _close(self, found: Decoded, buf: npt.NDArray[np.uint8]) -> None:
        """Take everything that belongs to committed transactions."""
        state = self._state
        transactions = int(state[scan.CLOSED_TRANSACTIONS])
        if transactions:
            self._check_order(self._tx_lsn[:transactions])
            found.durable = Lsn(max(int(self._tx_lsn[transactions - 1]), self._start))
            found.committed_at = int(self._tx_time[transactions - 1])
            if self._staged_xid and self._tx_lsn[0] > self._start:  # else it was sent again: its parts stay hidden
                found.staged[self._staged_xid] = Lsn(int(self._tx_lsn[0]))
            self._staged_xid = 0
            self._resume[:] = 0
            messages = int(state[scan.CLOSED_MESSAGES])
            found.changes = messages
            found.chunks.extend(self._chunks(buf, messages, self._tx_lsn[:transactions]))
        if state[scan.KEEPALIVE]:
            found.durable = Lsn(max(int(state[scan.KEEPALIVE]), found.durable or 0, self._start))

    def _check_order(self, lsns: npt.NDArray[np.int64]) -> None:
        """Commits come in the order of their LSNs: the log and all its readers rest on it."""
        if lsns[0] <= self._last or (lsns[1:] <= lsns[:-1]).any():
            message = "commits arrived out of order from Postgres"
            raise ProtocolError(message, _REPORT)
        self._last = int(lsns[-1])

    def _open(self, found: Decoded, buf: npt.NDArray[np.uint8]) -> None:
        """Take parts of the transaction in progress: its LSN is not known yet."""
        state = self._state
        self._staged_xid = found.open_xid = int(state[scan.XID])
        self._tx_xid[0], self._tx_time[0] = state[scan.XID], state[scan.COMMIT_TIME]
        found.changes = int(state[scan.MESSAGES])
        found.open_chunks.extend(self._chunks(buf, found.changes, np.array([-1], np.int64)))
        found.consumed = int(state[scan.POSITION])
        self._resume[:] = state[: scan.KEEPALIVE]

    def _chunks(self, buf: npt.NDArray[np.uint8], messages: int, lsns: npt.NDArray[np.int64]) -> Iterator[Chunk]:
        slots = self._m_slot[:messages]
        if 0 <= lsns[0] <= self._start:  # sent again by the server: in the log already
            slots = np.where(lsns[self._m_tx[:messages]] > self._start, slots, len(self._tables))
        for slot in np.flatnonzero(np.bincount(slots, minlength=len(self._tables))[: len(self._tables)]):
            chunk = self._chunk(buf, int(slot), np.flatnonzero(slots == slot), lsns)
            if chunk is not None:
                yield chunk

    def _chunk(
        self, buf: npt.NDArray[np.uint8], slot: int, entries: npt.NDArray[np.int64], lsns: npt.NDArray[np.int64]
    ) -> Chunk | None:
        """Build a table's chunk, leaving out the transactions from the one on in which the table failed."""
        while True:
            ends = [f.transaction for f in self._failures if f.slot == slot]
            entries = entries[self._m_tx[entries] < min(ends)] if ends else entries
            if not len(entries):
                return None
            try:
                return self._build(buf, self._tables[slot], self._codecs[slot], entries, lsns)
            except _Unfit as unfit:
                self._fail(slot, int(self._m_tx[entries[unfit.change]]), unfit.why, unfit.remedy)

    def _build(
        self,
        buf: npt.NDArray[np.uint8],
        table: DecodedTable,
        codecs: Sequence[ColumnCodec],
        entries: npt.NDArray[np.int64],
        lsns: npt.NDArray[np.int64],
    ) -> Chunk:
        columns, most = len(codecs), 2 * len(entries)
        off, length = np.empty((columns, most), np.int32), np.empty((columns, most), np.int32)
        kinds, owner, tags = np.empty(most, np.int8), np.empty(most, np.int32), np.zeros(columns, np.uint8)
        images = scan.split(buf, self._m_off[entries], columns, off, length, kinds, owner, tags)
        if images < 0:
            message = f"a malformed change of {table.schema.table} arrived from Postgres"
            raise ProtocolError(message, _REPORT)
        arrays = [
            _decode_column(codec, int(tags[c]), buf, off[c, :images], length[c, :images], owner, table.columns[c].name)
            for c, codec in enumerate(codecs)
        ]
        kinds, owned = kinds[:images], entries[owner[:images]]
        unchanged = _unchanged(length[:, :images])
        tx, transactions = self._transactions(self._m_tx[owned], lsns)
        row = pa.StructArray.from_arrays(arrays, fields=list(table.schema.columns))
        stored = pa.RecordBatch.from_arrays(
            [pa.array(tx), pa.array(self._m_ord[owned]), pa.array(kinds), unchanged, row],
            schema=stored_schema(table.schema.columns),
        )
        mask = int(np.bitwise_or.reduce(np.int64(1) << kinds.astype(np.int64)))
        return Chunk(table.schema.table, table.version, transactions, stored, mask, unchanged.null_count < images)

    def _transactions(
        self, tx: npt.NDArray[np.int32], lsns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
        """Return the place of each image's transaction among the chunk's own, and those transactions."""
        starts = np.flatnonzero(np.diff(tx, prepend=-1))
        own = tx[starts]
        place = np.repeat(np.arange(len(own), dtype=np.int32), np.diff(starts, append=len(tx)))
        times = pa.array(self._tx_time[own]).view(_TRANSACTIONS.field(2).type)
        batch = [pa.array(lsns[own]), pa.array(self._tx_xid[own]), times]
        return place, pa.RecordBatch.from_arrays(batch, schema=_TRANSACTIONS)

    def _end_failed(self, found: Decoded, transactions: int) -> None:
        """Turn the failures in committed transactions into errors of their tables.

        A failure in what stays in the buffer is forgotten: it is met again. One in a staged transaction waits for the
        commit, which will be that of transaction 0.
        """
        for failure in sorted(self._failures, key=lambda failure: failure.transaction):
            if failure.transaction < transactions and failure.slot not in self._ended:
                self._ended.add(failure.slot)
                table, lsn = str(self._tables[failure.slot].schema.table), int(self._tx_lsn[failure.transaction])
                found.errors.append(TableError(table, lsn, failure.message, failure.remedy))
        waiting = self._failures if self._staged_xid and not transactions else []
        self._failures = [failure for failure in waiting if failure.slot not in self._ended]
        if found.errors:
            self._map_relations()


class _Unfit(Exception):
    """A value that its column cannot hold, in the change with this index."""

    def __init__(self, change: int, why: str, remedy: str) -> None:
        super().__init__(change, why, remedy)
        self.change, self.why, self.remedy = change, why, remedy


def _decode_column(
    codec: ColumnCodec,
    tags: int,
    buf: npt.NDArray[np.uint8],
    off: npt.NDArray[np.int32],
    length: npt.NDArray[np.int32],
    owner: npt.NDArray[np.int32],
    name: str,
) -> pa.Array:
    """Decode one column; all of its values come in the same wire form."""
    if tags == 3:
        message = f"column {name} arrived both as text and as binary from Postgres"
        raise ProtocolError(message, _REPORT)
    try:
        return (codec.text if tags == 1 else codec.binary)(buf, off, length)
    except BadValue as bad:
        remedy = "Change the value upstream, then drop the source and capture it again."
        raise _Unfit(
            int(owner[bad.row]), f"column {name} holds a value that cannot be kept: {bad.reason}", remedy
        ) from bad


def _unchanged(length: npt.NDArray[np.int32]) -> pa.Array:
    """List per image the columns that were not sent because they did not change; null where all were."""
    kind = pa.list_(pa.field("item", pa.int32(), nullable=False))
    missing = length == -2
    if not missing.any():
        return pa.nulls(length.shape[1], kind)
    images, columns = np.nonzero(missing.T)
    counts = np.bincount(images, minlength=length.shape[1])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.array(columns.astype(np.int32))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=pa.array(counts == 0))


def _identity(columns: Sequence[RelationColumn] | Sequence[CapturedColumn]) -> list[str]:
    return [column.name for column in columns if column.identity]


def _drift(declared: Sequence[CapturedColumn], relation: Relation) -> str:
    """Say in which way a table's columns are no longer what they were."""
    before, now = {c.name: c for c in declared}, {c.name: c for c in relation.columns}
    added, gone = [n for n in now if n not in before], [n for n in before if n not in now]
    changed = [n for n in now if n in before and (now[n].oid, now[n].typmod) != _declared(before[n])]
    parts = [("added", added), ("dropped or renamed", gone), ("changed in type", changed)]
    said = ", ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return f"its columns changed upstream ({said or 'another order'})"


def _declared(column: CapturedColumn) -> tuple[int, int]:
    return column.type.oid, column.type.typmod
