"""Compiled kernels over replication messages: find the changes, then split their tuples into columns.

::

    buffer of messages ──scan──▶ one entry per change: offset, table slot, transaction, ordinal
                                 one entry per transaction: end LSN, xid, commit time
    entries of one table ──split──▶ offset[column, image], length[column, image], kind of each image

Both are total: every read is checked against the end of its message, and a message that violates the protocol stops the
scan with a status. Nothing is guessed. A length of -1 is NULL, and -2 is an unchanged TOAST value that was not sent.

Penstock's own markers in the stream (see `interference` in `replication`) are rare, so the scan does not read
them. It stops at such a message with MARKER, and skips it when it is called again with ``state[MARKER_READ]`` at its
position.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from penstock.kernel_cache import cached_njit
from penstock.sources.postgres.pgoutput.control_messages import MARKER_TABLE

__all__ = [
    "CLOSED_MESSAGES",
    "CLOSED_POSITION",
    "CLOSED_TRANSACTIONS",
    "COMMIT_TIME",
    "CONTROL",
    "IN_BLOCK",
    "IN_PREPARED",
    "IN_TRANSACTION",
    "KEEPALIVE",
    "MALFORMED",
    "MARKER",
    "MARKER_READ",
    "MESSAGES",
    "ORDINAL",
    "POSITION",
    "RELATION",
    "SCANNED",
    "STATE_SIZE",
    "TABLE_FULL",
    "TRANSACTIONS",
    "UNDESCRIBED",
    "UNKNOWN",
    "XID",
    "scan",
    "split",
]

# statuses of a scan
SCANNED = 0
RELATION = 1
TABLE_FULL = 2
CONTROL = 3
MARKER = 4
UNKNOWN = -1
MALFORMED = -2
UNDESCRIBED = -3

# values of state[IN_TRANSACTION] in a streamed block and in a prepared transaction; it is 1 between Begin and Commit
IN_BLOCK = 2
IN_PREPARED = 3

# indexes into the scanner's state, which persists across calls
IN_TRANSACTION = 0
XID = 1
COMMIT_TIME = 2
ORDINAL = 3
KEEPALIVE = 4
MESSAGES = 5
TRANSACTIONS = 6
CLOSED_MESSAGES = 7
CLOSED_TRANSACTIONS = 8
CLOSED_POSITION = 9
POSITION = 10
MARKER_READ = 11
STATE_SIZE = 12

_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, the epoch of Postgres
_HEADER = 4
_XLOG_HEADER = 25
_U8 = types.Array(types.uint8, 1, "C")
_I32 = types.Array(types.int32, 1, "C")
_I64 = types.Array(types.int64, 1, "C")
_I32x2 = types.Array(types.int32, 2, "C")
_I8 = types.Array(types.int8, 1, "C")


@njit(inline="always")
def _be16(b, p):  # type: ignore[no-untyped-def]
    return (np.int64(b[p]) << 8) | np.int64(b[p + 1])


@njit(inline="always")
def _be32(b, p):  # type: ignore[no-untyped-def]
    return (np.int64(b[p]) << 24) | (np.int64(b[p + 1]) << 16) | (np.int64(b[p + 2]) << 8) | np.int64(b[p + 3])


@njit(inline="always")
def _be64(b, p):  # type: ignore[no-untyped-def]
    return (_be32(b, p) << 32) | _be32(b, p + 4)


@njit(inline="always")
def _slot_of(relation, ids, slots):  # type: ignore[no-untyped-def]
    """Return the table slot of a relation (`ids` are sorted); -2 if the stream has not described it."""
    low, high = 0, ids.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < relation:
            low = middle + 1
        else:
            high = middle
    if low < ids.shape[0] and ids[low] == relation:
        return slots[low]
    return np.int32(-2)


@njit(inline="always")
def _text_end(b, p, e):  # type: ignore[no-untyped-def]
    """Return the offset after the NUL that ends the text at `p`; -1 if it does not end before `e`."""
    while p < e:
        p += 1
        if b[p - 1] == 0:
            return p
    return -1


@njit(inline="always")
def _is_well_formed(b, p, e, skip):  # type: ignore[no-untyped-def]
    """Return whether an Origin, Type or logical Message is well-formed."""
    if b[p] == 79:  # Origin: LSN, name
        return _text_end(b, p + 9, e) == e
    if b[p] == 89:  # Type: OID, schema, name
        q = _text_end(b, p + 5 + skip, e)
        return q > 0 and _text_end(b, q, e) == e
    q = _text_end(b, p + 10 + skip, e)  # Message: flags, LSN, prefix, length, content
    return q > 0 and q + 4 <= e and q + 4 + _be32(b, q) == e


@njit(inline="always")
def _has_penstock_prefix(b, p, e):  # type: ignore[no-untyped-def]
    """Return whether the prefix of a logical message begins with ``penstock.``."""
    return (
        p + 9 <= e
        and b[p] == 112 and b[p + 1] == 101 and b[p + 2] == 110 and b[p + 3] == 115 and b[p + 4] == 116
        and b[p + 5] == 111 and b[p + 6] == 99 and b[p + 7] == 107 and b[p + 8] == 46
    )  # fmt: skip


_SCAN = types.int64(_U8, types.int64, _I64, _I32, _I32, _I32, _I32, _I64, _I64, _I64, _I64, _I64, _I64)


@cached_njit(_SCAN, nogil=True)
def scan(buf, end, ids, slots, m_off, m_slot, m_tx, m_ord, m_sub, tx_lsn, tx_xid, tx_time, state):  # type: ignore[no-untyped-def]
    """Scan messages from ``state[POSITION]`` on; return a status.

    On RELATION and CONTROL the caller reads the message at the position, advances past it and calls again. On MARKER it
    reads the message, and the scan skips it. Slot -1 is a table whose changes are not wanted. ``CLOSED_*`` count what
    belongs to committed transactions. In a block of a streamed transaction, messages carry the xid of their
    subtransaction after the kind byte: `m_sub`.
    """
    pos = state[POSITION]
    n = state[MESSAGES]
    status = SCANNED
    while pos + _HEADER <= end:
        length = (
            np.int64(buf[pos])
            | np.int64(buf[pos + 1]) << 8
            | np.int64(buf[pos + 2]) << 16
            | np.int64(buf[pos + 3]) << 24
        )
        p = pos + _HEADER
        e = p + length
        if e > end:
            break
        if length < 1:
            status = MALFORMED
            break
        if buf[p] == 107:  # k: keepalive
            if length != 18:
                status = MALFORMED
                break
            if state[IN_TRANSACTION] == 0:
                state[KEEPALIVE] = max(state[KEEPALIVE], _be64(buf, p + 1))
                state[CLOSED_POSITION] = e
            pos = e
            continue
        if buf[p] != 119 or length <= _XLOG_HEADER:  # w: a message of the output plugin
            status = MALFORMED
            break
        p += _XLOG_HEADER
        kind = buf[p]
        skip = 4 if state[IN_TRANSACTION] == IN_BLOCK else 0
        if kind == 73 or kind == 85 or kind == 68:  # I U D
            if state[IN_TRANSACTION] == 0 or e - p < 6 + skip:
                status = MALFORMED
                break
            slot = _slot_of(_be32(buf, p + 1 + skip), ids, slots)
            if slot >= 0:
                if n == m_off.shape[0]:
                    status = TABLE_FULL
                    break
                m_off[n] = p
                m_slot[n] = slot
                m_tx[n] = state[TRANSACTIONS]
                m_ord[n] = state[ORDINAL]
                m_sub[n] = _be32(buf, p + 1) if skip else state[XID]
                n += 1
            elif slot == -2 or (slot <= MARKER_TABLE and state[MARKER_READ] != pos):
                status = UNDESCRIBED if slot == -2 else MARKER
                break
            state[ORDINAL] += 1
        elif kind == 66:  # Begin: final LSN, commit time, xid
            if state[IN_TRANSACTION] != 0 or e - p != 21:
                status = MALFORMED
                break
            if state[TRANSACTIONS] == tx_lsn.shape[0]:
                status = TABLE_FULL
                break
            state[IN_TRANSACTION] = 1
            state[COMMIT_TIME] = _be64(buf, p + 9) + _EPOCH
            state[XID] = _be32(buf, p + 17)
            state[ORDINAL] = 0
        elif kind == 67:  # Commit: flags, commit LSN, end LSN, commit time
            if state[IN_TRANSACTION] != 1 or e - p != 26:
                status = MALFORMED
                break
            t = state[TRANSACTIONS]
            tx_lsn[t] = _be64(buf, p + 10)
            tx_xid[t] = state[XID]
            tx_time[t] = state[COMMIT_TIME]
            state[TRANSACTIONS] = t + 1
            state[IN_TRANSACTION] = 0
            state[CLOSED_MESSAGES] = n
            state[CLOSED_TRANSACTIONS] = t + 1
            state[CLOSED_POSITION] = e
        elif kind == 82:  # Relation: read by the caller
            status = RELATION
            break
        elif kind == 84:  # Truncate: count, options, relations
            if state[IN_TRANSACTION] == 0 or e - p < 6 + skip or e - p != 6 + skip + 4 * _be32(buf, p + 1 + skip):
                status = MALFORMED
                break
            count = _be32(buf, p + 1 + skip)
            if count > m_off.shape[0]:
                status = MALFORMED
                break
            if n + count > m_off.shape[0]:
                status = TABLE_FULL
                break
            for i in range(count):
                slot = _slot_of(_be32(buf, p + 6 + skip + 4 * i), ids, slots)
                if slot == -2:
                    status = UNDESCRIBED
                elif slot <= MARKER_TABLE and state[MARKER_READ] != pos and status == SCANNED:
                    status = MARKER
            if status != SCANNED:
                break
            for i in range(count):
                slot = _slot_of(_be32(buf, p + 6 + skip + 4 * i), ids, slots)
                if slot >= 0:
                    m_off[n] = p
                    m_slot[n] = slot
                    m_tx[n] = state[TRANSACTIONS]
                    m_ord[n] = state[ORDINAL]
                    m_sub[n] = _be32(buf, p + 1) if skip else state[XID]
                    n += 1
                state[ORDINAL] += 1
        elif kind == 79 or kind == 89 or kind == 77:  # O Y M
            if not _is_well_formed(buf, p, e, skip):
                status = MALFORMED
                break
            if kind == 77 and state[MARKER_READ] != pos and _has_penstock_prefix(buf, p + 10 + skip, e):
                status = MARKER
                break
            if state[IN_TRANSACTION] == 0:
                state[CLOSED_POSITION] = e
        elif (
            kind == 83 or kind == 69 or kind == 99 or kind == 65
            or kind == 98 or kind == 80 or kind == 75 or kind == 114 or kind == 112
        ):  # S E c A b P K r p: read by the caller  # fmt: skip
            status = CONTROL
            break
        else:
            status = UNKNOWN
            break
        pos = e
    state[POSITION] = pos
    state[MESSAGES] = n
    return status


@cached_njit(types.int64(_U8, _I32, types.int64, types.int64, _I32x2, _I32x2, _I8, _I32, _U8), nogil=True)
def split(buf, m_off, skip, columns, off, length, kinds, owner, tags):  # type: ignore[no-untyped-def]
    """Split the tuples of one table's changes; return the number of images, or minus the (1-based) malformed change.

    `skip` bytes follow each kind byte (an xid, in streamed blocks). `owner` has the change of each image; `tags`
    collects the wire formats seen per column (1 text, 2 binary). A value of the new row that was not sent is copied
    from the old row if that has it (in its key, or in the whole row).
    """
    r = 0
    for i in range(m_off.shape[0]):
        p = np.int64(m_off[i])
        e = p - _XLOG_HEADER - _HEADER
        e = (
            p
            - _XLOG_HEADER
            + (np.int64(buf[e]) | np.int64(buf[e + 1]) << 8 | np.int64(buf[e + 2]) << 16 | np.int64(buf[e + 3]) << 24)
        )
        kind = buf[p]
        if kind == 84:
            for c in range(columns):
                off[c, r] = p
                length[c, r] = -1
            kinds[r] = 0
            owner[r] = i
            r += 1
            continue
        p += 5 + skip
        while True:
            if p + 3 > e:
                return -i - 1
            role = buf[p]
            p += 1
            old = role == 75 or role == 79  # K, O
            if role == 78 and kind == 73:
                kinds[r] = 6
            elif role == 78 and kind == 85:
                kinds[r] = 5
            elif old and kind == 85 and (r == 0 or owner[r - 1] != i):
                kinds[r] = 1 if role == 79 else 2
            elif old and kind == 68:
                kinds[r] = 3 if role == 79 else 4
            else:
                return -i - 1
            owner[r] = i
            if _be16(buf, p) != columns:
                return -i - 1
            p += 2
            for c in range(columns):
                if p >= e:
                    return -i - 1
                tag = buf[p]
                p += 1
                if tag == 110:  # n: null
                    off[c, r] = p
                    length[c, r] = -1
                elif tag == 117:  # u: unchanged, not sent
                    if kinds[r] != 5:
                        return -i - 1
                    if r > 0 and owner[r - 1] == i and length[c, r - 1] >= 0:
                        off[c, r] = off[c, r - 1]
                        length[c, r] = length[c, r - 1]
                    else:
                        off[c, r] = p
                        length[c, r] = -2
                elif tag == 116 or tag == 98:  # t, b
                    if p + 4 > e:
                        return -i - 1
                    size = _be32(buf, p)
                    p += 4
                    if size > e - p:
                        return -i - 1
                    off[c, r] = p
                    length[c, r] = size
                    tags[c] |= 1 if tag == 116 else 2
                    p += size
                else:
                    return -i - 1
            r += 1
            if not (kind == 85 and old):
                break
        if p != e:
            return -i - 1
    return r
