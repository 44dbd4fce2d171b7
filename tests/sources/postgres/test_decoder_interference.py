"""Watermarks and heartbeats in the stream: all are checked, and transactions before interference are published."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.postgres.decoding import DESCRIBED, ORDERS, TABLES, Log, feed
from tests.sources.postgres.messages import (
    UNCHANGED,
    abort,
    begin,
    begin_prepare,
    block,
    block_commit,
    buffer,
    commit,
    commit_prepared,
    delete,
    insert,
    keepalive,
    message,
    prepare,
    relation,
    rollback_prepared,
    truncate,
    update,
    wal,
)
from tests.sources.postgres.test_decoder_streaming import pieces, rows
from tests.sources.postgres.test_interference import OTHERS, US, high, low

from penstock.errors import ProtocolError
from penstock.positions import Lsn
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sources.postgres.pgoutput.relations import RelationColumn
from penstock.sources.postgres.replication.heartbeat import Beat
from penstock.sources.postgres.replication.interference import InterferenceGuard, MarkerKind
from penstock.sources.postgres.replication.watermark import Watermark

WATERMARKS, HEARTBEATS = 17000, 17001
META_COLUMNS = (RelationColumn("id", 23, -1, True), RelationColumn("token", 25, -1))
META_DESCRIBED = relation(WATERMARKS, "watermarks", META_COLUMNS, schema="dblog_meta") + relation(
    HEARTBEATS, "heartbeats", META_COLUMNS, schema="dblog_meta"
)
ONE = struct.pack(">i", 1)
FIRST = begin(1) + DESCRIBED + META_DESCRIBED + insert(ORDERS, 1, "a") + commit(10)


def guard(start: int = 0) -> InterferenceGuard:
    return InterferenceGuard("shop", US, [subject.table for subject in MarkerKind], whole=not start)


def watermark_message(watermark: Watermark) -> bytes:
    return message("penstock.watermark", watermark.token())


def watermark_update(watermark: Watermark) -> bytes:
    return update(WATERMARKS, [ONE, watermark.token()])


def decode_guarded(stream: bytes, size: int = 10_000, start: int = 0, force: bool = False) -> Log:
    return feed(pieces(stream, size), start, force, guard=guard(start))


def ids(log: Log) -> list[int]:
    return [row[2] for row in rows(log)]


SIZES = pytest.mark.parametrize("size", [1, 7, 50, 10_000])
FORCE = pytest.mark.parametrize("force", [False, True])
INTERFERENCE = {
    "a malformed message": message("penstock.watermark", "garbage"),
    "a message that is not UTF-8": message("penstock.watermark", b"\xff"),
    "a malformed heartbeat": message("penstock.heartbeat", ""),
    "a forged HIGH": watermark_message(high(5)),
    "an insert": insert(WATERMARKS, ONE, low(1).token()),
    "a delete": delete(WATERMARKS, [ONE, None]),
    "a truncate": truncate(WATERMARKS),
    "a truncate with other tables": truncate(ORDERS, HEARTBEATS),
    "another row": update(WATERMARKS, [struct.pack(">i", 2), low(1).token()]),
    "no token": update(WATERMARKS, [ONE, None]),
    "a token that was not sent": update(WATERMARKS, [ONE, UNCHANGED]),
    "a malformed token": update(WATERMARKS, [ONE, "x"]),
    "another source's token": update(WATERMARKS, [ONE, low(1, identity=OTHERS).token()]),
    "a heartbeat in the watermark table": update(WATERMARKS, [ONE, Beat(US, 1).token()]),
    "a heartbeat of another source": update(HEARTBEATS, [ONE, Beat(OTHERS, 1).token()]),
    "other columns": relation(
        WATERMARKS, "watermarks", (*META_COLUMNS, RelationColumn("more", 25, -1)), schema="dblog_meta"
    )
    + update(WATERMARKS, [ONE, low(1).token(), None]),
}
MALFORMED = INTERFERENCE["a malformed message"]


@FORCE
@SIZES
def test_own_markers_are_accepted_anywhere(size: int, force: bool) -> None:
    stream = (
        FIRST
        + begin(2) + watermark_message(low(1)) + commit(20)
        + begin(3) + insert(ORDERS, 2, "b") + watermark_update(high(1)) + insert(ORDERS, 3, "c") + commit(30)
        + message("penstock.heartbeat", Beat(US, 1).token(), 35)
        + message("penstock.watermark", low(1, identity=OTHERS).token(), 36)
        + block(50, (50, insert(ORDERS, 4, "d")), (51, watermark_message(low(2))), (52, watermark_update(high(2))))
        + message("penstock.heartbeat", Beat(US, 2).token(), 37)
        + block_commit(50, 40)
        + begin(5) + update(HEARTBEATS, [ONE, Beat(US, 3).token()])
        + update(WATERMARKS, [b"1", low(3).token()], [ONE, None], b"O")
        + commit(50) + keepalive(60)
    )  # fmt: skip
    log = decode_guarded(stream, size, force=force)
    assert log.interference is None
    assert ids(log) == [1, 2, 3, 4]
    assert [ordinal for _, ordinal, _ in rows(log)] == [0, 0, 2, 0], "a watermark in a table uses an ordinal"
    assert log.durable == 60


@FORCE
@SIZES
@pytest.mark.parametrize("wrong", INTERFERENCE.values(), ids=INTERFERENCE)
def test_only_commits_before_interference_are_published(wrong: bytes, size: int, force: bool) -> None:
    stream = (
        FIRST
        + begin(2) + insert(ORDERS, 2, "b") + commit(20) + keepalive(25)
        + begin(3) + insert(ORDERS, 3, "c") + wrong + insert(ORDERS, 4, "d") + commit(30)
        + begin(4) + insert(ORDERS, 5, "e") + commit(40) + keepalive(50)
    )  # fmt: skip
    log = decode_guarded(stream, size, force=force)
    assert log.interference is not None
    assert "transaction 3, at 0/1E" in log.interference.message
    assert ids(log) == [1, 2]
    assert 20 <= log.durable <= 25


@FORCE
@SIZES
@pytest.mark.parametrize("wrong", INTERFERENCE.values(), ids=INTERFERENCE)
def test_interference_in_a_block_is_reported_at_commit(wrong: bytes, size: int, force: bool) -> None:
    """Postgres writes the xid of the subtransaction with a change, but that of the transaction with a message."""
    rolled_back = wrong[29:30] != b"M"
    parts = [(51 if rolled_back else 50, part) for part in _messages(wrong)]
    opened = FIRST + block(50, (50, insert(ORDERS, 2, "b")), *parts)
    between = begin(3) + insert(ORDERS, 3, "c") + commit(30)
    after = begin(4) + insert(ORDERS, 4, "d") + commit(50)
    found = decode_guarded(opened + between + block_commit(50, 40) + after, size, force=force)
    assert found.interference is not None
    assert "transaction 50, at 0/28" in found.interference.message
    assert (ids(found), found.durable, found.uncertain) == ([1, 3], 30, False)
    undone = decode_guarded(opened + between + abort(50, 50) + after, size, force=force)
    assert (undone.interference, ids(undone), undone.durable) == (None, [1, 3, 4], 50)
    part = decode_guarded(opened + between + abort(50, 51) + block_commit(50, 40) + after, size, force=force)
    if rolled_back:
        assert (part.interference, ids(part), part.durable) == (None, [1, 3, 2, 4], 50)
    else:
        assert (part.uncertain, ids(part), part.durable) == (True, [1, 3], 30)


def _messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        (size,) = struct.unpack_from("<I", data)
        found.append(data[: 4 + size])
        data = data[4 + size :]
    return found


@FORCE
@SIZES
def test_interference_outside_a_transaction_is_reported_at_its_own_position(size: int, force: bool) -> None:
    bad = message("penstock.heartbeat", "x", 25)
    for after in (begin(3) + insert(ORDERS, 3, "c") + commit(30), block(50, (50, insert(ORDERS, 3, "c"))), abort(9, 9)):
        stream = FIRST + begin(2) + insert(ORDERS, 2, "b") + commit(20) + bad + after + keepalive(50)
        log = decode_guarded(stream, size, force=force)
        assert log.interference is not None
        assert "by transaction" not in log.interference.message
        assert (ids(log), log.durable) == ([1, 2], 20)


@FORCE
@SIZES
def test_prepared_transaction_is_checked_at_prepare(size: int, force: bool) -> None:
    """Penstock never prepares its own transactions; and after a restart the contents would not be sent again."""
    prepared = FIRST + begin_prepare(70) + insert(ORDERS, 2, "b") + MALFORMED + prepare(70, 15)
    log = decode_guarded(prepared + commit_prepared(70, 30), size, force=force)
    assert log.interference is not None
    assert (ids(log), log.durable, log.prepared) == ([1], 10, set())
    other_source = FIRST + begin_prepare(70) + watermark_message(low(1, identity=OTHERS)) + prepare(70, 15)
    for end in (commit_prepared(70, 30), rollback_prepared(70, 30)):
        assert decode_guarded(other_source + end, size, force=force).interference is None


def test_interference_in_a_partly_emitted_transaction() -> None:
    """Its first part, with the watermark, is emitted before its commit; interference is reported at the commit."""
    first = FIRST + begin(2) + insert(ORDERS, 2, "b") + MALFORMED
    log = feed([first, insert(ORDERS, 3, "c"), commit(20) + keepalive(30)], force=True, guard=guard())
    assert log.interference is not None
    assert "transaction 2, at 0/14" in log.interference.message
    assert (ids(log), log.durable) == ([1], 10)
    assert log.parts.keys() == {2}


def test_resent_transactions_are_not_checked_again() -> None:
    stream = FIRST + begin(2) + MALFORMED + commit(20) + message("penstock.heartbeat", "x", 25)
    again = block(50, (50, MALFORMED)) + block_commit(50, 28) + begin_prepare(70) + MALFORMED + prepare(70, 29)
    after = begin(3) + insert(ORDERS, 3, "c") + commit(40)
    log = decode_guarded(stream + again + after, start=30)
    assert log.interference is None
    assert (ids(log), log.durable) == ([3], 40)


def test_messages_with_other_prefixes_are_ignored() -> None:
    for prefix in ("", "penstock", "penstoc", "outbox", "penstock.something", "Penstock.watermark"):
        stream = (
            FIRST + message(prefix, "x", 15) + begin(2) + message(prefix, "x") + insert(ORDERS, 2, "b") + commit(20)
        )
        stream += block(50, (50, message(prefix, "x")), (50, insert(ORDERS, 3, "c"))) + block_commit(50, 30)
        log = decode_guarded(stream)
        assert (log.interference, ids(log)) == (None, [1, 2, 3])


def test_without_a_guard_nothing_is_checked() -> None:
    log = feed([FIRST + begin(2) + MALFORMED + INTERFERENCE["a delete"] + insert(ORDERS, 2, "b") + commit(20)])
    assert (log.interference, ids(log)) == (None, [1, 2])


def test_relation_described_in_a_rolled_back_block_is_ignored() -> None:
    """Columns that were described in a rolled-back block do not apply to later updates."""
    wider = relation(WATERMARKS, "watermarks", (*META_COLUMNS, RelationColumn("more", 25, -1)), schema="dblog_meta")
    stream = FIRST + block(50, (50, wider)) + abort(50, 50) + begin(2) + watermark_update(low(1)) + commit(20)
    assert decode_guarded(stream).interference is None


@pytest.mark.parametrize(
    "stream",
    [
        begin(2) + message("penstock.watermark", "x", 15),
        message("penstock.watermark", "x"),
        block(50, (50, message("penstock.watermark", "x", 15))),
        begin(2) + update(WATERMARKS, [ONE]),
        begin(2) + update(WATERMARKS, [ONE, "x", "y"]),
        begin(2) + wal(b"U" + struct.pack(">I", WATERMARKS) + b"N\0\x02zz"),
        begin(2) + wal(b"U" + struct.pack(">I", WATERMARKS) + b"N\0\x02nt\0\0\0\x09x"),
        begin(2) + wal(b"U" + struct.pack(">I", WATERMARKS) + b"K\0\x02nn"),
        begin(2) + wal(watermark_update(low(1))[29:] + b"\0"),
    ],
)
def test_protocol_violations_are_rejected(stream: bytes) -> None:
    for force in (False, True):
        with pytest.raises(ProtocolError):
            decode_guarded(FIRST + stream + begin(99), force=force)


EVERYTHING = (
    FIRST
    + begin(2) + watermark_message(low(1)) + watermark_update(high(1)) + truncate(ORDERS, WATERMARKS) + commit(20)
    + message("penstock.heartbeat", Beat(US, 1).token(), 25)
    + block(50, (50, watermark_message(low(2))), (51, MALFORMED)) + abort(50, 51) + block_commit(50, 40)
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_garbled_markers_decode_or_are_rejected(data: st.DataObject) -> None:
    """No other error and no hang, with bytes changed, removed or doubled anywhere."""
    stream = bytearray(EVERYTHING)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(len(FIRST), len(stream) - 1))
        match data.draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                stream[at] = data.draw(st.integers(0, 255))
            case "cut":
                del stream[at : at + data.draw(st.integers(1, 20))]
            case "double":
                stream[at:at] = stream[at : at + data.draw(st.integers(1, 40))]
        if len(stream) <= len(FIRST):
            return
    made, rest, force = Decoder(TABLES, Lsn.ZERO, guard=guard()), b"", data.draw(st.booleans())
    with contextlib.suppress(ProtocolError):
        for piece in pieces(bytes(stream), data.draw(st.integers(30, 500))):
            rest, more = rest + piece, True
            while more:
                found = made.decode(buffer(rest, slack=40), len(rest), force=force)
                if found.interference is not None:
                    return
                assert not found.more or found.consumed
                rest, more = rest[found.consumed :], found.more
