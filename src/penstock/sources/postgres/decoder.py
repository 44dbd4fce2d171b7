"""From replication messages to chunks of the change log. Bytes in, values out: no I/O in here.

::

    messages ─scan─▶ changes, transactions ─by table─▶ split ─by column─▶ type kernels ─▶ Arrow ─▶ Chunk

Only whole transactions leave the decoder: what follows the last commit stays in the caller's buffer and is scanned
again with what comes next. There are three exceptions, whose parts leave it as *staged* chunks, before the
commit and without an LSN; the change log shows them to nobody until the commit publishes them:

* a transaction that outgrows the buffer,
* one that outgrew the server's memory: it comes in blocks, between those of others, with the xid of the
  subtransaction on every change, since any of them may still be rolled back,
* one that is prepared (two-phase commit): it comes when it is prepared and is told later how it ended.

A change that cannot be kept (a table that changed its columns, a value that its column's type cannot hold) ends its
table with a definite error at that transaction; all others go on. Where the change is rolled back, nothing ends.

Watermarks and heartbeats are heard on the way, and no part of the log (see `penstock.sources.postgres.signals`). Where
somebody interferes with them, what committed before that leaves the decoder, and nothing after it.

What the server sends again, up to where the log ends, leaves nothing. It is looked at all the same: it has to be what
the log has (see `penstock.sources.postgres.overlap`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.changelog.interface import Chunk, Commit, StagedCommit
from penstock.errors import PenstockError, ProtocolError, TableError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres import control, scan
from penstock.sources.postgres.build import Changes, UnfitChangeError, build
from penstock.sources.postgres.control import REPORT, parse_control
from penstock.sources.postgres.decoded import Decoded
from penstock.sources.postgres.open_transaction import Failure, OpenTransaction
from penstock.sources.postgres.overlap import Overlap
from penstock.sources.postgres.relations import (
    Refused,
    Relation,
    RelationSlots,
    Shape,
    Shapes,
    Undescribed,
    parse_relation,
)
from penstock.sources.postgres.signals import Guard, Hearing
from penstock.unexpected import REPORT as DEFECT
from penstock.unexpected import origin

__all__ = ["Decoder"]

_MOST_CHANGES = 1 << 18
_AFRESH = "Capture the table anew: ALTER SOURCES … RETRY TABLE {table};"


class Decoder:
    """Decodes one replication stream; a new stream needs a new decoder."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        start: Lsn,
        ended: Collection[TableName] = (),
        *,
        truncate_ends: bool = False,
        guard: Guard | None = None,
        overlap: Overlap | None = None,
        begun: Mapping[TableName, Lsn] | None = None,
    ) -> None:
        """Decode what follows `start`, without the tables that have `ended`; a TRUNCATE may end one, too.

        What is sent again up to `start` is held to `overlap`; `begun` is where the log began anew to tell of a table.
        """
        self._overlap = overlap or Overlap("", start, start, None)
        self._begun = begun or {}
        self._hearing = Hearing(guard, start)
        self._truncate_ends = truncate_ends
        self.shapes = Shapes({shape.name: shape for shape in shapes})
        self._start = start
        self._relations = RelationSlots(ended)
        self._slots = self._relations.tables
        self._state = np.zeros(scan.STATE_SIZE, np.int64)
        self._m_off, self._m_slot, self._m_tx = (np.empty(_MOST_CHANGES, np.int32) for _ in range(3))
        self._m_ord, self._m_sub = (np.empty(_MOST_CHANGES, np.int64) for _ in range(2))
        self._tx_lsn, self._tx_xid, self._tx_time = (np.empty(_MOST_CHANGES, np.int64) for _ in range(3))
        self._open: dict[int, OpenTransaction] = {}
        self._last = 0
        self._again = False
        self._resume = np.zeros(scan.KEEPALIVE, np.int64)
        """The scanner's state at the first byte that is not consumed: in the staged transaction, if there is one."""

    def decode(self, buf: npt.NDArray[np.uint8], end: int, *, force: bool = False) -> Decoded:
        """Decode the messages in ``buf[:end]`` up to the last commit; `force` also takes what lies behind it.

        Raises `Undescribed` when a table has columns that nobody has described: nothing is consumed then.
        """
        state = self._state
        state[: scan.KEEPALIVE] = self._resume
        state[scan.KEEPALIVE :] = 0
        state[scan.HEARD] = -1
        self._hearing.heard.clear()
        self._relations.rescan()
        self._map_relations()
        found = Decoded()
        found.more = self._scan(buf, end, found)
        if not found.consumed:
            found.consumed = int(state[scan.CLOSED_POSITION])
            self._close(found, buf)
            if (force or found.more) and state[scan.IN_TRANSACTION] and not found.consumed:
                self._take_part(found, buf)
        self._keep_relations(found.consumed)
        return found

    def described_again(self) -> bool:
        """Say whether a table was described again since this was asked last: something about it changed upstream."""
        again, self._again = self._again, False
        return again

    def end_tables(self, errors: Iterable[TableError]) -> None:
        """Decode no more of these tables."""
        for error in errors:
            self._end_table(TableName.parse(error.table))

    # -- scanning ---------------------------------------------------------------------------------------------------

    def _scan(self, buf: npt.NDArray[np.uint8], end: int, found: Decoded) -> bool:
        """Scan to the end; True when it stopped before, because something has to leave first."""
        while True:
            status = scan.scan(
                buf, end, self._relations.ids, self._relations.slots, self._m_off, self._m_slot, self._m_tx,
                self._m_ord, self._m_sub, self._tx_lsn, self._tx_xid, self._tx_time, self._state,
            )  # fmt: skip
            if status == scan.RELATION:
                self._describe(buf)
            elif status == scan.TOLD:
                self._hear(buf)
            elif status == scan.CONTROL:
                if self._state[scan.CLOSED_TRANSACTIONS] or self._hearing.outside or self._follow(buf, found):
                    return True
            elif status in (scan.SCANNED, scan.TABLE_FULL):
                return bool(status == scan.TABLE_FULL)
            else:
                self._refuse(int(status), buf)

    def _message(self, buf: npt.NDArray[np.uint8]) -> bytes:
        """Return the message at the position, and step over it."""
        at = int(self._state[scan.POSITION])
        end = at + 4 + int.from_bytes(buf[at : at + 4].tobytes(), "little")
        self._state[scan.POSITION] = end
        return buf[at + 29 : end].tobytes()

    def _hear(self, buf: npt.NDArray[np.uint8]) -> None:
        """Listen to the message at the position; the scan then steps over it."""
        at, xid = int(self._state[scan.POSITION]), int(self._state[scan.XID])
        message = self._message(buf)
        if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK:
            xid, message = int.from_bytes(message[1:5], "big"), message[:1] + message[5:]
        transaction = int(self._state[scan.TRANSACTIONS]) if self._state[scan.IN_TRANSACTION] else None
        self._hearing.hear(message, at, transaction, xid, self._relations.mapped)
        self._state[scan.POSITION] = self._state[scan.HEARD] = at

    def _refuse(self, status: int, buf: npt.NDArray[np.uint8]) -> None:
        at = int(self._state[scan.POSITION]) + 29
        kind = chr(buf[at]) if at < len(buf) else "?"
        what = {scan.UNKNOWN: "an unknown", scan.FOREIGN: "an undescribed table's"}.get(status, "a malformed")
        message = f"{what} replication message ({kind!r}) arrived from Postgres"
        raise ProtocolError(message, REPORT)

    # -- relations --------------------------------------------------------------------------------------------------

    def _describe(self, buf: npt.NDArray[np.uint8]) -> None:
        """Take note of a Relation message and step over it."""
        at, message = int(self._state[scan.POSITION]), self._message(buf)
        if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK:
            message = message[:1] + message[5:]
        relation = parse_relation(message)
        try:
            slot = self._slot_of(relation)
        except Undescribed as unknown:
            unknown.xid = int(self._state[scan.XID]) if self._state[scan.IN_TRANSACTION] == 1 else None
            raise
        self._again |= slot >= 0 and relation.id in self._relations.mapped
        self._relations.describe(at, relation.id, slot)
        self._map_relations()

    def _slot_of(self, relation: Relation) -> int:
        listened = self._hearing.slot_of(relation)
        if listened is not None:
            return listened
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK  # any of what it described may be rolled back
        return self._relations.slot_of(self.shapes.of(relation, {} if block else self._relations.described()))

    def _map_relations(self) -> None:
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK
        self._relations.lay_out(self._opened(int(self._state[scan.XID])).relations if block else {})

    def _keep_relations(self, consumed: int) -> None:
        """Keep what was described in the bytes that are done with; the rest is met again."""
        block = self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK
        told = self._relations.told(consumed)
        (self._opened(int(self._state[scan.XID])).relations if block and told else self._relations.known).update(told)

    def _end_table(self, name: TableName) -> None:
        self._relations.end(name, (opened.relations for opened in self._open.values()))

    # -- transactions in one piece ----------------------------------------------------------------------------------

    def _close(self, found: Decoded, buf: npt.NDArray[np.uint8]) -> None:
        """Take everything that belongs to committed transactions."""
        state = self._state
        transactions = self._undisturbed(found)
        if transactions:
            lsns = self._tx_lsn[:transactions]
            found.durable = Lsn(max(int(lsns[-1]), self._start))
            found.committed_at = int(self._tx_time[transactions - 1]) if lsns[-1] > self._start else None
            changing = np.zeros(transactions, np.bool_)
            changing[0] = self._changes_before(int(lsns[0]))
            failures = self._close_staged(found, int(lsns[0]))
            self._resume[:] = 0
            found.changes = int(state[scan.CLOSED_MESSAGES])
            if found.interference is not None:
                found.changes = int(np.searchsorted(self._m_tx[: found.changes], transactions))
            self._see(found, lsns, changing)
            found.chunks.extend(self._chunks(buf, found.changes, lsns, failures))
            self._end_tables(found, failures, lsns)
        if state[scan.KEEPALIVE] and found.interference is None:
            self._overlap.reach(Lsn(int(state[scan.KEEPALIVE])))
            found.durable = Lsn(max(int(state[scan.KEEPALIVE]), found.durable or 0, self._start))

    def _see(self, found: Decoded, lsns: npt.NDArray[np.int64], changing: npt.NDArray[np.bool_]) -> None:
        """Hold what was sent again to the log; note the last transaction that changes something."""
        if lsns[0] <= self._start:
            begun = np.array([self._begun.get(table.name, 0) for table in self._slots] or [0], np.int64)
            tx, slots = self._m_tx[: found.changes], self._m_slot[: found.changes]
            changing[tx[lsns[tx] > begun[slots]]] = True
        else:
            changing[self._m_tx[: found.changes]] = True
        xids, times = self._tx_xid[: len(lsns)], self._tx_time[: len(lsns)]
        self._overlap.see(lsns, xids, times, changing)
        new = np.flatnonzero(changing & (lsns > self._start))
        if len(new):
            at = int(new[-1])
            found.last = Commit(Lsn(int(lsns[at])), int(xids[at]), int(times[at]))

    def _changes_before(self, lsn: int) -> bool:
        """Whether the parts that have left of the transaction in progress, which ends here, change something."""
        if not self._resume[scan.IN_TRANSACTION]:
            return False
        return self._is_change(self._opened(int(self._resume[scan.XID])), lsn)

    def _is_change(self, opened: OpenTransaction, lsn: int) -> bool:
        return any(lsn > self._begun.get(self._slots[slot].name, 0) for slot in opened.lasting_slots())

    def _undisturbed(self, found: Decoded) -> int:
        """Return how many of the transactions that committed come before interference with our marks."""
        transactions = int(self._state[scan.CLOSED_TRANSACTIONS])
        lsns = self._tx_lsn[:transactions]
        if transactions:
            self._check_order(lsns)
        earlier = self._opened(int(self._resume[scan.XID])).heard if self._resume[scan.IN_TRANSACTION] else []
        disturbed = self._hearing.disturbed(found.consumed, lsns, earlier if transactions else [])
        if disturbed is None:
            return transactions
        transactions, found.interference = disturbed
        return transactions

    def _close_staged(self, found: Decoded, lsn: int) -> list[Failure]:
        """End the transaction that was staged because it outgrew the buffer: it is the first to commit."""
        if not self._resume[scan.IN_TRANSACTION]:
            return []
        xid = int(self._resume[scan.XID])
        opened = self._open.pop(xid, OpenTransaction())
        self._advance(*opened.lasting_slots())
        if lsn > self._start:
            found.staged[xid] = StagedCommit(Lsn(lsn), int(self._tx_time[0]))
        else:
            found.discarded.append(xid)  # it was sent again: it is in the log
        return opened.lasting_failures()

    def _check_order(self, lsns: npt.NDArray[np.int64]) -> None:
        """Commits come in the order of their LSNs: the log and all its readers rest on it."""
        if lsns[0] <= self._last or (lsns[1:] <= lsns[:-1]).any():
            message = "commits arrived out of order from Postgres"
            raise ProtocolError(message, REPORT)
        self._last = int(lsns[-1])

    def _chunks(
        self, buf: npt.NDArray[np.uint8], messages: int, lsns: npt.NDArray[np.int64], failures: list[Failure]
    ) -> Iterator[Chunk]:
        slots = self._m_slot[:messages]
        if lsns[0] <= self._start:  # sent again by the server: in the log already
            slots = np.where(lsns[self._m_tx[:messages]] > self._start, slots, len(self._slots))
        for slot in self._touched(slots):
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
                except UnfitChangeError as unfit:
                    failures.append(self._failure(slot, int(tx[unfit.change]), unfit))

    def _touched(self, slots: npt.NDArray[np.int32]) -> list[int]:
        """Return the slots with changes, those of one table in the order in which they came up."""
        return [int(slot) for slot in np.flatnonzero(np.bincount(slots, minlength=1)[: len(self._slots)])]

    def _advance(self, *slots: int) -> None:
        """Take note of the shapes with which a transaction has committed."""
        for slot in slots:
            shape = self._slots[slot]
            if isinstance(shape, Shape):
                self.shapes.advance(shape)

    def _build(self, changes: Changes, slot: int) -> Chunk:
        shape = self._slots[slot]
        if isinstance(shape, Refused):
            raise UnfitChangeError(0, shape.why)
        truncates = np.flatnonzero(changes.buf[changes.off] == ord("T"))
        if self._truncate_ends and len(truncates):
            raise UnfitChangeError(int(truncates[0]), "it was truncated, which the strict rules do not follow")
        try:
            return build(changes, shape)
        except (UnfitChangeError, PenstockError, MemoryError):
            raise
        except Exception as error:  # the same changes would meet it again: it ends this table, and no other
            raise UnfitChangeError(
                0, f"an unexpected {origin(error)}", f"{DEFECT} {_AFRESH.format(table=shape.name)}"
            ) from error

    def _failure(self, slot: int, transaction: int, unfit: UnfitChangeError) -> Failure:
        name = self._slots[slot].name
        hint = unfit.hint or _AFRESH.format(table=name)
        return Failure(name, transaction, f"capture of {name} stopped: {unfit.why}", hint)

    def _end_tables(self, found: Decoded, failures: Sequence[Failure], lsns: npt.NDArray[np.int64]) -> None:
        """Turn failures in committed transactions into errors of their tables."""
        for failure in sorted(failures, key=lambda failure: failure.transaction):
            lsn = int(lsns[failure.transaction])
            if not self._relations.has_ended(failure.table) and lsn > self._start:
                self._end_table(failure.table)
                found.errors.append(TableError(str(failure.table), lsn, failure.message, failure.hint))

    # -- transactions in parts --------------------------------------------------------------------------------------

    def _opened(self, xid: int) -> OpenTransaction:
        return self._open.setdefault(xid, OpenTransaction())

    def _take_part(self, found: Decoded, buf: npt.NDArray[np.uint8]) -> None:
        """Take what there is of the transaction in progress: its LSN is not known yet."""
        state = self._state
        xid = found.open_xid = int(state[scan.XID])
        opened = self._opened(xid)
        found.changes = int(state[scan.MESSAGES])
        found.open_chunks.extend(self._parts(buf, found.changes, opened))
        found.consumed = int(state[scan.POSITION])
        opened.ordinal = int(state[scan.ORDINAL])
        opened.heard += [replace(heard, transaction=0) for heard in self._hearing.heard]
        self._resume[:] = state[: scan.KEEPALIVE]

    def _parts(self, buf: npt.NDArray[np.uint8], messages: int, opened: OpenTransaction) -> Iterator[Chunk]:
        slots = self._m_slot[:messages]
        skip = 4 if self._state[scan.IN_TRANSACTION] == scan.IN_BLOCK else 0
        for slot in self._touched(slots):
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
                except UnfitChangeError as unfit:
                    subtransaction = int(xids[tx[unfit.change]])
                    opened.failures.append(self._failure(slot, subtransaction, unfit))
                    entries = entries[self._m_sub[entries] != subtransaction]

    def _follow(self, buf: npt.NDArray[np.uint8], found: Decoded) -> bool:
        """Read a message that opens, ends or undoes a part; True when something leaves the decoder with it."""
        state = self._state
        message = parse_control(self._message(buf))
        match message:
            case control.BlockBegin(xid, first):
                self._enter(scan.IN_BLOCK, xid, found, first=first)
                return False
            case control.BeginPrepare(xid):
                self._enter(scan.IN_PREPARED, xid, found, first=True)
                return False
            case control.BlockEnd():
                self._leave(found, buf, scan.IN_BLOCK)
                return True
            case control.Abort(xid, subtransaction):
                self._require_outside()
                state[scan.CLOSED_POSITION] = state[scan.POSITION]
                if subtransaction != xid:
                    self._opened(xid).aborted.add(subtransaction)
                    return False
                self._open.pop(xid, None)
                found.discarded.append(xid)
            case control.RollbackPrepared(xid):
                self._require_outside()
                self._open.pop(xid, None)
                found.discarded.append(xid)
            case control.Prepare(xid, lsn):
                self._prepare(found, buf, xid, lsn)
            case control.CommitLater():
                self._commit_later(found, message)
        found.consumed = int(state[scan.POSITION])
        return True

    def _enter(self, what: int, xid: int, found: Decoded, *, first: bool) -> None:
        """Begin to read changes of a transaction that comes in parts; its `first` part voids what came before."""
        self._require_outside()
        if first:
            self._open.pop(xid, None)
            found.discarded.append(xid)
        self._state[scan.IN_TRANSACTION], self._state[scan.XID] = what, xid
        self._state[scan.ORDINAL] = self._opened(xid).ordinal
        self._map_relations()

    def _leave(self, found: Decoded, buf: npt.NDArray[np.uint8], what: int) -> None:
        """Take the part that ends here."""
        if self._state[scan.IN_TRANSACTION] != what:
            message = "the end of a part of a transaction arrived from Postgres without its beginning"
            raise ProtocolError(message, REPORT)
        self._take_part(found, buf)
        if what == scan.IN_BLOCK:
            self._keep_relations(found.consumed)
            self._relations.rescan()
        self._state[scan.IN_TRANSACTION] = 0
        self._resume[:] = 0

    def _prepare(self, found: Decoded, buf: npt.NDArray[np.uint8], xid: int, lsn: Lsn) -> None:
        if self._state[scan.IN_TRANSACTION]:
            self._leave(found, buf, scan.IN_PREPARED)
        opened = self._opened(xid)
        if self._interferes(found, opened, lsn, xid):
            return
        opened.heard.clear()
        found.prepared[xid] = frozenset(opened.aborted)
        found.durable = Lsn(max(lsn, self._start))
        self._end_tables(found, opened.lasting_failures(), np.array([lsn], np.int64))  # the commit may be long after
        opened.failures.clear()

    def _commit_later(self, found: Decoded, commit: control.CommitLater) -> None:
        """Publish what was staged of a transaction; one that is in the log already was sent again."""
        self._require_outside()
        opened = self._open.pop(commit.xid, OpenTransaction())
        self._check_order(np.array([commit.lsn], np.int64))
        if self._interferes(found, opened, commit.lsn, commit.xid):
            return
        changing = self._is_change(opened, commit.lsn)
        one = [np.array([value], np.int64) for value in (commit.lsn, commit.xid, commit.committed_at)]
        self._overlap.see(one[0], one[1], one[2], np.array([changing]))
        self._relations.known |= opened.relations
        found.durable = Lsn(max(commit.lsn, self._start))
        if commit.lsn <= self._start:
            found.discarded.append(commit.xid)
            return
        found.committed_at = commit.committed_at
        found.last = Commit(commit.lsn, commit.xid, commit.committed_at) if changing else None
        found.staged[commit.xid] = StagedCommit(commit.lsn, commit.committed_at, frozenset(opened.aborted))
        failures = [*opened.lasting_failures(), *self._shrunk(opened)]
        self._end_tables(found, failures, np.array([commit.lsn], np.int64))
        self._advance(*opened.lasting_slots())

    def _interferes(self, found: Decoded, opened: OpenTransaction, lsn: Lsn, xid: int) -> bool:
        """Whether a transaction that came in parts holds what ends the stream."""
        found.interference = self._hearing.judge(opened.lasting_signs(), lsn, xid)
        found.uncertain = found.interference is not None and bool(opened.aborted)
        return found.interference is not None

    def _shrunk(self, opened: OpenTransaction) -> Iterator[Failure]:
        """Find tables that lost a column again in the transaction that had added it."""
        for slot, other in itertools.permutations(opened.lasting_slots(), 2):
            narrow, wide = self._slots[slot], self._slots[other]
            if not (isinstance(narrow, Shape) and isinstance(wide, Shape) and narrow.name == wide.name):
                continue
            if len(narrow.codecs) < len(wide.codecs) and opened.comes_after(slot, other):
                yield self._failure(slot, 0, UnfitChangeError(0, "a column that was added upstream was dropped again"))

    def _require_outside(self) -> None:
        if self._state[scan.IN_TRANSACTION]:
            message = "a transaction arrived within another one from Postgres"
            raise ProtocolError(message, REPORT)
