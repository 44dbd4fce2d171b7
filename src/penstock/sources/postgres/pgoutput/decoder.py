"""Decode replication messages into chunks of the change log. Bytes in, values out: the decoder does no I/O.

::

    messages ─scan─▶ changes, transactions ─by table─▶ split ─by column─▶ type kernels ─▶ Arrow ─▶ Chunk

The decoder emits only whole transactions: bytes after the last commit stay in the caller's buffer and are scanned again
together with the bytes that follow. There are three exceptions. Their parts are emitted as *staged* chunks, before the
commit and without an LSN, and the change log hides them from readers until the commit publishes them:

* a transaction that outgrows the buffer,
* a streamed transaction, which outgrew the server's memory: it arrives in blocks, interleaved with those of other
  transactions, and each change carries the xid of its subtransaction, because any of these may still be rolled back,
* a prepared transaction (two-phase commit): it arrives at PREPARE, and its outcome follows later.

A change that cannot be stored (the table changed its columns, or a value does not fit the type of its column) fails its
table with a permanent error at that transaction; all other tables continue. If the change is rolled back, no table
fails.

Watermarks and heartbeats are read on the way and are not part of the log (see `interference` in `replication`). If
another session interferes with them, the decoder emits all transactions that committed before the interference, and
none after it.

Transactions that the server resends, up to the end of the log, produce no output. They are still compared with the log
(see `penstock.sources.postgres.pgoutput.overlap`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.changelog.interface import Chunk, Commit, StagedCommit
from penstock.errors import PenstockError, ProtocolError, SchemaChangeError, TableError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.pgoutput import control_messages, scan
from penstock.sources.postgres.pgoutput.chunk_builder import Changes, RejectedChangeError, build_chunk
from penstock.sources.postgres.pgoutput.control_messages import PROTOCOL_HINT, parse_control
from penstock.sources.postgres.pgoutput.decode_result import DecodeResult
from penstock.sources.postgres.pgoutput.open_transaction import Failure, OpenTransaction
from penstock.sources.postgres.pgoutput.overlap import Overlap
from penstock.sources.postgres.pgoutput.relations import (
    RejectedShape,
    Relation,
    RelationSlots,
    Shape,
    Shapes,
    UnknownColumnsError,
    parse_relation,
)
from penstock.sources.postgres.replication.interference import InterferenceGuard, MarkerMonitor
from penstock.unexpected_errors import DEFECT_HINT, origin

__all__ = ["Decoder"]

_MOST_CHANGES = 1 << 18
_RETRY_HINT = "Take a new snapshot of the table: ALTER SOURCES … RETRY TABLE {table};"


class Decoder:
    """Decodes one replication stream; a new stream needs a new decoder."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        start: Lsn,
        ended: Collection[TableName] = (),
        *,
        truncate_ends: bool = False,
        guard: InterferenceGuard | None = None,
        overlap: Overlap | None = None,
        table_starts: Mapping[TableName, Lsn] | None = None,
    ) -> None:
        """Decode transactions after `start`, except those of `ended` tables; `truncate_ends` fails truncated tables.

        Transactions resent up to `start` are compared with `overlap`. `table_starts` has the position at which the log
        of a table begins, for tables that were captured again.
        """
        self._overlap = overlap or Overlap("", start, start, None)
        self._table_starts = table_starts or {}
        self._monitor = MarkerMonitor(guard, start)
        self._truncate_ends = truncate_ends
        self.shapes = Shapes({shape.name: shape for shape in shapes})
        self._start = start
        self._relations = RelationSlots(ended)
        self._slots = self._relations.tables
        self._state = np.zeros(scan.STATE_SIZE, np.int64)
        self._m_off, self._m_slot, self._m_tx = (np.empty(_MOST_CHANGES, np.int32) for _ in range(3))
        self._m_ord, self._m_sub = (np.empty(_MOST_CHANGES, np.int64) for _ in range(2))
        self._tx_lsn, self._tx_xid, self._tx_time = (np.empty(_MOST_CHANGES, np.int64) for _ in range(3))
        self._open_transactions: dict[int, OpenTransaction] = {}
        self._last = 0
        self._redescribed = False
        self._resume = np.zeros(scan.KEEPALIVE, np.int64)
        """The scanner's state at the first unconsumed byte: inside the staged transaction, if there is one."""

    def decode(self, buf: npt.NDArray[np.uint8], end: int, *, force: bool = False) -> DecodeResult:
        """Decode the messages in ``buf[:end]`` up to the last commit; with `force`, also the part after it.

        Raises `UnknownColumnsError`, and consumes nothing, if a table has columns that the decoder does not know.
        """
        state = self._state
        state[: scan.KEEPALIVE] = self._resume
        state[scan.KEEPALIVE :] = 0
        state[scan.MARKER_READ] = -1
        self._monitor.markers.clear()
        self._relations.rescan()
        self._map_relations()
        found = DecodeResult()
        found.more = self._scan(buf, end, found)
        if not found.consumed:
            found.consumed = int(state[scan.CLOSED_POSITION])
            self._close(found, buf)
            if (force or found.more) and state[scan.IN_TRANSACTION] and not found.consumed:
                self._stage_part(found, buf)
        self._keep_relations(found.consumed)
        return found

    def take_redescribed(self) -> bool:
        """Return whether the stream described a table again since the last call: it may have been altered."""
        again, self._redescribed = self._redescribed, False
        return again

    def end_tables(self, errors: Iterable[TableError]) -> None:
        """Stop decoding these tables."""
        for error in errors:
            self._end_table(TableName.parse(error.table))

    # -- scanning ---------------------------------------------------------------------------------------------------

    def _scan(self, buf: npt.NDArray[np.uint8], end: int, found: DecodeResult) -> bool:
        """Scan to the end; return True if the scan stopped earlier because results have to be emitted first."""
        while True:
            status = scan.scan(
                buf, end, self._relations.ids, self._relations.slots, self._m_off, self._m_slot, self._m_tx,
                self._m_ord, self._m_sub, self._tx_lsn, self._tx_xid, self._tx_time, self._state,
            )  # fmt: skip
            if status == scan.RELATION:
                self._describe(buf)
            elif status == scan.MARKER:
                self._read_marker(buf)
            elif status == scan.CONTROL:
                if (
                    self._state[scan.CLOSED_TRANSACTIONS]
                    or self._monitor.has_nontransactional
                    or self._handle_control(buf, found)
                ):
                    return True
            elif status in (scan.SCANNED, scan.TABLE_FULL):
                return bool(status == scan.TABLE_FULL)
            else:
                self._raise_protocol_error(int(status), buf)

    def _message(self, buf: npt.NDArray[np.uint8]) -> bytes:
        """Return the message at the current position and advance past it."""
        at = int(self._state[scan.POSITION])
        end = at + 4 + int.from_bytes(buf[at : at + 4].tobytes(), "little")
        self._state[scan.POSITION] = end
        return buf[at + 29 : end].tobytes()

    def _read_marker(self, buf: npt.NDArray[np.uint8]) -> None:
        """Read the marker at the current position; the scan then skips it."""
        at, xid = int(self._state[scan.POSITION]), int(self._state[scan.XID])
        message = self._message(buf)
        if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK:
            xid, message = int.from_bytes(message[1:5], "big"), message[:1] + message[5:]
        transaction = int(self._state[scan.TRANSACTIONS]) if self._state[scan.IN_TRANSACTION] else None
        self._monitor.read(message, at, transaction, xid, self._relations.slot_by_relation)
        self._state[scan.POSITION] = self._state[scan.MARKER_READ] = at

    def _raise_protocol_error(self, status: int, buf: npt.NDArray[np.uint8]) -> None:
        at = int(self._state[scan.POSITION]) + 29
        kind = chr(buf[at]) if at < len(buf) else "?"
        what = {scan.UNKNOWN: "unknown", scan.UNDESCRIBED: "undescribed table in"}.get(status, "malformed")
        message = f"{what} replication message ({kind!r}) received from Postgres"
        raise ProtocolError(message, PROTOCOL_HINT)

    # -- relations --------------------------------------------------------------------------------------------------

    def _describe(self, buf: npt.NDArray[np.uint8]) -> None:
        """Record a Relation message and advance past it."""
        at, message = int(self._state[scan.POSITION]), self._message(buf)
        if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK:
            message = message[:1] + message[5:]
        relation = parse_relation(message)
        try:
            slot = self._slot_of(relation)
        except UnknownColumnsError as error:
            error.xid = int(self._state[scan.XID]) if self._state[scan.IN_TRANSACTION] == 1 else None
            raise
        self._redescribed |= slot >= 0 and relation.id in self._relations.slot_by_relation
        self._relations.describe(at, relation.id, slot)
        self._map_relations()

    def _slot_of(self, relation: Relation) -> int:
        marker_slot = self._monitor.slot_of(relation)
        if marker_slot is not None:
            return marker_slot
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK  # its relations may be rolled back
        return self._relations.slot_of(self.shapes.of(relation, {} if block else self._relations.described()))

    def _map_relations(self) -> None:
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK
        self._relations.build_lookup(self._open_transaction(int(self._state[scan.XID])).relations if block else {})

    def _keep_relations(self, consumed: int) -> None:
        """Keep the relations described in consumed bytes; the others are scanned again."""
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK
        described = self._relations.described_before(consumed)
        (
            self._open_transaction(int(self._state[scan.XID])).relations
            if block and described
            else self._relations.consumed_slots
        ).update(described)

    def _end_table(self, name: TableName) -> None:
        self._relations.end(name, (opened.relations for opened in self._open_transactions.values()))

    # -- transactions in one piece ----------------------------------------------------------------------------------

    def _close(self, found: DecodeResult, buf: npt.NDArray[np.uint8]) -> None:
        """Emit everything that belongs to committed transactions."""
        state = self._state
        transactions = self._count_before_interference(found)
        if transactions:
            lsns = self._tx_lsn[:transactions]
            found.durable = Lsn(max(int(lsns[-1]), self._start))
            found.committed_at = int(self._tx_time[transactions - 1]) if lsns[-1] > self._start else None
            changing = np.zeros(transactions, np.bool_)
            changing[0] = self._staged_part_changes_tables(int(lsns[0]))
            failures = self._close_staged(found, int(lsns[0]))
            self._resume[:] = 0
            found.changes = int(state[scan.CLOSED_MESSAGES])
            if found.interference is not None:
                found.changes = int(np.searchsorted(self._m_tx[: found.changes], transactions))
            self._check_overlap(found, lsns, changing)
            found.chunks.extend(self._chunks(buf, found.changes, lsns, failures))
            self._end_tables(found, failures, lsns)
        if state[scan.KEEPALIVE] and found.interference is None:
            self._overlap.advance(Lsn(int(state[scan.KEEPALIVE])))
            found.durable = Lsn(max(int(state[scan.KEEPALIVE]), found.durable or 0, self._start))

    def _check_overlap(self, found: DecodeResult, lsns: npt.NDArray[np.int64], changing: npt.NDArray[np.bool_]) -> None:
        """Compare resent transactions with the log, and record the last transaction that changes a captured table."""
        if lsns[0] <= self._start:
            table_starts = np.array([self._table_starts.get(table.name, 0) for table in self._slots] or [0], np.int64)
            tx, slots = self._m_tx[: found.changes], self._m_slot[: found.changes]
            changing[tx[lsns[tx] > table_starts[slots]]] = True
        else:
            changing[self._m_tx[: found.changes]] = True
        xids, times = self._tx_xid[: len(lsns)], self._tx_time[: len(lsns)]
        self._overlap.check(lsns, xids, times, changing)
        new = np.flatnonzero(changing & (lsns > self._start))
        if len(new):
            at = int(new[-1])
            found.last = Commit(Lsn(int(lsns[at])), int(xids[at]), int(times[at]))

    def _staged_part_changes_tables(self, lsn: int) -> bool:
        """Return whether the staged parts of the transaction that ends here change a captured table."""
        if not self._resume[scan.IN_TRANSACTION]:
            return False
        return self._changes_tables(self._open_transaction(int(self._resume[scan.XID])), lsn)

    def _changes_tables(self, opened: OpenTransaction, lsn: int) -> bool:
        return any(lsn > self._table_starts.get(self._slots[slot].name, 0) for slot in opened.lasting_slots())

    def _count_before_interference(self, found: DecodeResult) -> int:
        """Return the number of committed transactions before interference with the markers."""
        transactions = int(self._state[scan.CLOSED_TRANSACTIONS])
        lsns = self._tx_lsn[:transactions]
        if transactions:
            self._check_order(lsns)
        earlier = (
            self._open_transaction(int(self._resume[scan.XID])).markers if self._resume[scan.IN_TRANSACTION] else []
        )
        interference = self._monitor.first_interference(found.consumed, lsns, earlier if transactions else [])
        if interference is None:
            return transactions
        transactions, found.interference = interference
        return transactions

    def _close_staged(self, found: DecodeResult, lsn: int) -> list[Failure]:
        """Commit the transaction that was staged because it outgrew the buffer: it is the first one to commit."""
        if not self._resume[scan.IN_TRANSACTION]:
            return []
        xid = int(self._resume[scan.XID])
        opened = self._open_transactions.pop(xid, OpenTransaction())
        self._advance(*opened.lasting_slots())
        if lsn > self._start:
            found.staged[xid] = StagedCommit(Lsn(lsn), int(self._tx_time[0]))
        else:
            found.discarded.append(xid)  # resent: the log has it
        return opened.lasting_failures()

    def _check_order(self, lsns: npt.NDArray[np.int64]) -> None:
        """Require that commits arrive in LSN order: the log and all its readers rely on it."""
        if lsns[0] <= self._last or (lsns[1:] <= lsns[:-1]).any():
            message = "commits received out of order from Postgres"
            raise ProtocolError(message, PROTOCOL_HINT)
        self._last = int(lsns[-1])

    def _chunks(
        self, buf: npt.NDArray[np.uint8], messages: int, lsns: npt.NDArray[np.int64], failures: list[Failure]
    ) -> Iterator[Chunk]:
        slots = self._m_slot[:messages]
        if lsns[0] <= self._start:  # sent again: the log has them
            slots = np.where(lsns[self._m_tx[:messages]] > self._start, slots, len(self._slots))
        for slot in self._changed_slots(slots):
            entries = np.flatnonzero(slots == slot)
            while True:
                ends = [f.transaction for f in failures if f.table == self._slots[slot].name]
                entries = entries[self._m_tx[entries] < min(ends)] if ends else entries
                if not len(entries):
                    break
                tx = self._m_tx[entries]
                changes = Changes(
                    buf, self._m_off[entries], self._m_ord[entries], tx, lsns, self._tx_xid, self._tx_time
                )
                try:
                    yield self._build(changes, slot)
                    self._advance(slot)
                    break
                except RejectedChangeError as unfit:
                    failures.append(self._failure(slot, int(tx[unfit.change]), unfit))

    def _changed_slots(self, slots: npt.NDArray[np.int32]) -> list[int]:
        """Return the slots with changes; slots of the same table are in the order of their description."""
        return [int(slot) for slot in np.flatnonzero(np.bincount(slots, minlength=1)[: len(self._slots)])]

    def _advance(self, *slots: int) -> None:
        """Record the shapes of tables as of a committed transaction."""
        for slot in slots:
            shape = self._slots[slot]
            if isinstance(shape, Shape):
                self.shapes.advance(shape)

    def _build(self, changes: Changes, slot: int) -> Chunk:
        shape = self._slots[slot]
        if isinstance(shape, RejectedShape):
            raise RejectedChangeError(0, shape.why, kind=shape.kind)
        truncates = np.flatnonzero(changes.buf[changes.off] == ord("T"))
        if self._truncate_ends and len(truncates):
            raise RejectedChangeError(int(truncates[0]), "it was truncated, which the strict rules do not follow")
        try:
            return build_chunk(changes, shape)
        except (RejectedChangeError, PenstockError, MemoryError):
            raise
        except Exception as error:  # a retry would fail the same way: fail this table only
            raise RejectedChangeError(
                0, f"unexpected {origin(error)}", f"{DEFECT_HINT} {_RETRY_HINT.format(table=shape.name)}"
            ) from error

    def _failure(self, slot: int, transaction: int, unfit: RejectedChangeError) -> Failure:
        name = self._slots[slot].name
        hint = unfit.hint or _RETRY_HINT.format(table=name)
        return Failure(name, transaction, f"capture of {name} stopped: {unfit.why}", hint, unfit.kind)

    def _end_tables(self, found: DecodeResult, failures: Sequence[Failure], lsns: npt.NDArray[np.int64]) -> None:
        """Turn failures in committed transactions into errors of their tables."""
        for failure in sorted(failures, key=lambda failure: failure.transaction):
            lsn = int(lsns[failure.transaction])
            if not self._relations.has_ended(failure.table) and lsn > self._start:
                self._end_table(failure.table)
                found.errors.append(failure.kind(str(failure.table), lsn, failure.message, failure.hint))

    # -- transactions in parts --------------------------------------------------------------------------------------

    def _open_transaction(self, xid: int) -> OpenTransaction:
        return self._open_transactions.setdefault(xid, OpenTransaction())

    def _stage_part(self, found: DecodeResult, buf: npt.NDArray[np.uint8]) -> None:
        """Stage the available part of the transaction in progress, whose LSN is not known yet."""
        state = self._state
        xid = found.open_xid = int(state[scan.XID])
        opened = self._open_transaction(xid)
        found.changes = int(state[scan.MESSAGES])
        found.open_chunks.extend(self._parts(buf, found.changes, opened))
        found.consumed = int(state[scan.POSITION])
        opened.ordinal = int(state[scan.ORDINAL])
        opened.markers += [replace(marker, transaction=0) for marker in self._monitor.markers]
        self._resume[:] = state[: scan.KEEPALIVE]

    def _parts(self, buf: npt.NDArray[np.uint8], messages: int, opened: OpenTransaction) -> Iterator[Chunk]:
        slots = self._m_slot[:messages]
        skip = 4 if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK else 0
        for slot in self._changed_slots(slots):
            entries = np.flatnonzero(slots == slot)
            while len(entries):
                xids, tx = np.unique(self._m_sub[entries], return_inverse=True)
                unknown = np.full(len(xids), -1, np.int64)
                changes = Changes(
                    buf, self._m_off[entries], self._m_ord[entries], tx.astype(np.int32),
                    unknown, xids, np.zeros(len(xids), np.int64), skip,
                )  # fmt: skip
                try:
                    yield self._build(changes, slot)
                    opened.use(slot, xids, tx, changes.ordinal)
                    break
                except RejectedChangeError as unfit:
                    subtransaction = int(xids[tx[unfit.change]])
                    opened.failures.append(self._failure(slot, subtransaction, unfit))
                    entries = entries[self._m_sub[entries] != subtransaction]

    def _handle_control(self, buf: npt.NDArray[np.uint8], found: DecodeResult) -> bool:
        """Handle a message that begins, ends or rolls back a part; return True if it emits results."""
        state = self._state
        message = parse_control(self._message(buf))
        match message:
            case control_messages.StreamStart(xid, first):
                self._begin_part(scan.IN_BLOCK, xid, found, first=first)
                return False
            case control_messages.BeginPrepare(xid):
                self._begin_part(scan.IN_PREPARED, xid, found, first=True)
                return False
            case control_messages.StreamStop():
                self._end_part(found, buf, scan.IN_BLOCK)
                return True
            case control_messages.Abort(xid, subtransaction):
                self._require_no_transaction()
                state[scan.CLOSED_POSITION] = state[scan.POSITION]
                if subtransaction != xid:
                    self._open_transaction(xid).aborted.add(subtransaction)
                    return False
                self._open_transactions.pop(xid, None)
                found.discarded.append(xid)
            case control_messages.RollbackPrepared(xid):
                self._require_no_transaction()
                self._open_transactions.pop(xid, None)
                found.discarded.append(xid)
            case control_messages.Prepare(xid, lsn):
                self._prepare(found, buf, xid, lsn)
            case control_messages.DeferredCommit():
                self._commit_later(found, message)
        found.consumed = int(state[scan.POSITION])
        return True

    def _begin_part(self, what: int, xid: int, found: DecodeResult, *, first: bool) -> None:
        """Begin a part of a transaction that arrives in parts; its `first` part voids parts received earlier."""
        self._require_no_transaction()
        if first:
            self._open_transactions.pop(xid, None)
            found.discarded.append(xid)
        self._state[scan.IN_TRANSACTION], self._state[scan.XID] = what, xid
        self._state[scan.ORDINAL] = self._open_transaction(xid).ordinal
        self._map_relations()

    def _end_part(self, found: DecodeResult, buf: npt.NDArray[np.uint8], what: int) -> None:
        """Stage the part that ends here."""
        if self._state[scan.IN_TRANSACTION] != what:
            message = "end of a part of a transaction received from Postgres without its begin"
            raise ProtocolError(message, PROTOCOL_HINT)
        self._stage_part(found, buf)
        if what == scan.IN_BLOCK:
            self._keep_relations(found.consumed)
            self._relations.rescan()
        self._state[scan.IN_TRANSACTION] = 0
        self._resume[:] = 0

    def _prepare(self, found: DecodeResult, buf: npt.NDArray[np.uint8], xid: int, lsn: Lsn) -> None:
        if self._state[scan.IN_TRANSACTION]:
            self._end_part(found, buf, scan.IN_PREPARED)
        opened = self._open_transaction(xid)
        if self._interferes(found, opened, lsn, xid):
            return
        opened.markers.clear()
        found.prepared[xid] = frozenset(opened.aborted)
        found.durable = Lsn(max(lsn, self._start))
        self._end_tables(
            found, opened.lasting_failures(), np.array([lsn], np.int64)
        )  # the commit may follow much later
        opened.failures.clear()

    def _commit_later(self, found: DecodeResult, commit: control_messages.DeferredCommit) -> None:
        """Publish the staged parts of a transaction; discard them if the log already has it."""
        self._require_no_transaction()
        opened = self._open_transactions.pop(commit.xid, OpenTransaction())
        self._check_order(np.array([commit.lsn], np.int64))
        if self._interferes(found, opened, commit.lsn, commit.xid):
            return
        changing = self._changes_tables(opened, commit.lsn)
        one = [np.array([value], np.int64) for value in (commit.lsn, commit.xid, commit.committed_at)]
        self._overlap.check(one[0], one[1], one[2], np.array([changing]))
        self._relations.consumed_slots |= opened.relations
        found.durable = Lsn(max(commit.lsn, self._start))
        if commit.lsn <= self._start:
            found.discarded.append(commit.xid)
            return
        found.committed_at = commit.committed_at
        found.last = Commit(commit.lsn, commit.xid, commit.committed_at) if changing else None
        found.staged[commit.xid] = StagedCommit(commit.lsn, commit.committed_at, frozenset(opened.aborted))
        failures = [*opened.lasting_failures(), *self._columns_dropped_again(opened)]
        self._end_tables(found, failures, np.array([commit.lsn], np.int64))
        self._advance(*opened.lasting_slots())

    def _interferes(self, found: DecodeResult, opened: OpenTransaction, lsn: Lsn, xid: int) -> bool:
        """Return whether a transaction that arrived in parts holds interference, which ends the stream."""
        found.interference = self._monitor.check(opened.lasting_markers(), lsn, xid)
        found.uncertain = found.interference is not None and bool(opened.aborted)
        return found.interference is not None

    def _columns_dropped_again(self, opened: OpenTransaction) -> Iterator[Failure]:
        """Find tables that lost a column in the same transaction that had added it."""
        for slot, other in itertools.permutations(opened.lasting_slots(), 2):
            narrow, wide = self._slots[slot], self._slots[other]
            if not (isinstance(narrow, Shape) and isinstance(wide, Shape) and narrow.name == wide.name):
                continue
            if len(narrow.codecs) < len(wide.codecs) and opened.comes_after(slot, other):
                why = "a column added upstream was dropped again"
                yield self._failure(slot, 0, RejectedChangeError(0, why, kind=SchemaChangeError))

    def _require_no_transaction(self) -> None:
        if self._state[scan.IN_TRANSACTION]:
            message = "transaction received from Postgres inside another one"
            raise ProtocolError(message, PROTOCOL_HINT)
