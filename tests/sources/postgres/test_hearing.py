"""Watermarks and heartbeats in the stream: heard wherever they stand, and what precedes a foreign one leaves whole."""

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
from tests.sources.postgres.test_decoder_parts import pieces, rows
from tests.sources.postgres.test_interference import OTHERS, US, high, low

from penstock.errors import ProtocolError
from penstock.positions import Lsn
from penstock.sources.postgres.decoder import Decoder
from penstock.sources.postgres.heartbeat import Beat
from penstock.sources.postgres.relations import RelationColumn
from penstock.sources.postgres.signals import Guard, Subject
from penstock.sources.postgres.watermark import Watermark

MARKS, BEATS = 17000, 17001
META = (RelationColumn("id", 23, -1, True), RelationColumn("token", 25, -1))
LISTED = relation(MARKS, "watermarks", META, schema="dblog_meta") + relation(
    BEATS, "heartbeats", META, schema="dblog_meta"
)
ONE = struct.pack(">i", 1)
FIRST = begin(1) + DESCRIBED + LISTED + insert(ORDERS, 1, "a") + commit(10)


def guard(start: int = 0) -> Guard:
    return Guard("shop", US, [subject.table for subject in Subject], whole=not start)


def mark(watermark: Watermark) -> bytes:
    return message("penstock.watermark", watermark.token())


def marked(watermark: Watermark) -> bytes:
    return update(MARKS, [ONE, watermark.token()])


def listened(stream: bytes, size: int = 10_000, start: int = 0, force: bool = False) -> Log:
    return feed(pieces(stream, size), start, force, guard=guard(start))


def ids(log: Log) -> list[int]:
    return [row[2] for row in rows(log)]


SIZES = pytest.mark.parametrize("size", [1, 7, 50, 10_000])
FORCE = pytest.mark.parametrize("force", [False, True])
WRONG = {
    "a malformed message": message("penstock.watermark", "garbage"),
    "a message that is no text": message("penstock.watermark", b"\xff"),
    "a malformed heartbeat": message("penstock.heartbeat", ""),
    "a forged HIGH": mark(high(5)),
    "an insert": insert(MARKS, ONE, low(1).token()),
    "a delete": delete(MARKS, [ONE, None]),
    "a truncate": truncate(MARKS),
    "a truncate of others as well": truncate(ORDERS, BEATS),
    "another row": update(MARKS, [struct.pack(">i", 2), low(1).token()]),
    "no token": update(MARKS, [ONE, None]),
    "a token that was not sent": update(MARKS, [ONE, UNCHANGED]),
    "a malformed token": update(MARKS, [ONE, "x"]),
    "another source's token": update(MARKS, [ONE, low(1, identity=OTHERS).token()]),
    "a heartbeat in the place of a watermark": update(MARKS, [ONE, Beat(US, 1).token()]),
    "a heartbeat of another source": update(BEATS, [ONE, Beat(OTHERS, 1).token()]),
    "other columns": relation(MARKS, "watermarks", (*META, RelationColumn("more", 25, -1)), schema="dblog_meta")
    + update(MARKS, [ONE, low(1).token(), None]),
}
BAD = WRONG["a malformed message"]


@FORCE
@SIZES
def test_ours_pass_wherever_they_stand(size: int, force: bool) -> None:
    stream = (
        FIRST
        + begin(2) + mark(low(1)) + commit(20)
        + begin(3) + insert(ORDERS, 2, "b") + marked(high(1)) + insert(ORDERS, 3, "c") + commit(30)
        + message("penstock.heartbeat", Beat(US, 1).token(), 35)
        + message("penstock.watermark", low(1, identity=OTHERS).token(), 36)
        + block(50, (50, insert(ORDERS, 4, "d")), (51, mark(low(2))), (52, marked(high(2))))
        + message("penstock.heartbeat", Beat(US, 2).token(), 37)
        + block_commit(50, 40)
        + begin(5) + update(BEATS, [ONE, Beat(US, 3).token()])
        + update(MARKS, [b"1", low(3).token()], [ONE, None], b"O")
        + commit(50) + keepalive(60)
    )  # fmt: skip
    log = listened(stream, size, force=force)
    assert log.interference is None
    assert ids(log) == [1, 2, 3, 4]
    assert [place for _, place, _ in rows(log)] == [0, 0, 2, 0], "a watermark in a table counts as a change"
    assert log.durable == 60


@FORCE
@SIZES
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_committed_before_interference_leaves_and_nothing_after(wrong: bytes, size: int, force: bool) -> None:
    stream = (
        FIRST
        + begin(2) + insert(ORDERS, 2, "b") + commit(20) + keepalive(25)
        + begin(3) + insert(ORDERS, 3, "c") + wrong + insert(ORDERS, 4, "d") + commit(30)
        + begin(4) + insert(ORDERS, 5, "e") + commit(40) + keepalive(50)
    )  # fmt: skip
    log = listened(stream, size, force=force)
    assert log.interference is not None
    assert "transaction 3, at 0/1E" in log.interference.message
    assert ids(log) == [1, 2]
    assert 20 <= log.durable <= 25


@FORCE
@SIZES
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_in_a_block_it_counts_at_the_commit(wrong: bytes, size: int, force: bool) -> None:
    """A change has the xid of its subtransaction, but a message that of the transaction: so does Postgres write it."""
    rolled_back = wrong[29:30] != b"M"
    parts = [(51 if rolled_back else 50, part) for part in _messages(wrong)]
    opened = FIRST + block(50, (50, insert(ORDERS, 2, "b")), *parts)
    between = begin(3) + insert(ORDERS, 3, "c") + commit(30)
    after = begin(4) + insert(ORDERS, 4, "d") + commit(50)
    found = listened(opened + between + block_commit(50, 40) + after, size, force=force)
    assert found.interference is not None
    assert "transaction 50, at 0/28" in found.interference.message
    assert (ids(found), found.durable, found.uncertain) == ([1, 3], 30, False)
    undone = listened(opened + between + abort(50, 50) + after, size, force=force)
    assert (undone.interference, ids(undone), undone.durable) == (None, [1, 3, 4], 50)
    part = listened(opened + between + abort(50, 51) + block_commit(50, 40) + after, size, force=force)
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
def test_outside_of_transactions_it_counts_at_its_own_position(size: int, force: bool) -> None:
    bad = message("penstock.heartbeat", "x", 25)
    for after in (begin(3) + insert(ORDERS, 3, "c") + commit(30), block(50, (50, insert(ORDERS, 3, "c"))), abort(9, 9)):
        stream = FIRST + begin(2) + insert(ORDERS, 2, "b") + commit(20) + bad + after + keepalive(50)
        log = listened(stream, size, force=force)
        assert log.interference is not None
        assert "by transaction" not in log.interference.message
        assert (ids(log), log.durable) == ([1, 2], 20)


@FORCE
@SIZES
def test_a_prepared_transaction_is_judged_when_it_is_prepared(size: int, force: bool) -> None:
    """We never prepare ours; and after a restart it would not be sent again."""
    prepared = FIRST + begin_prepare(70) + insert(ORDERS, 2, "b") + BAD + prepare(70, 15)
    log = listened(prepared + commit_prepared(70, 30), size, force=force)
    assert log.interference is not None
    assert (ids(log), log.durable, log.kept) == ([1], 10, set())
    of_others = FIRST + begin_prepare(70) + mark(low(1, identity=OTHERS)) + prepare(70, 15)
    for end in (commit_prepared(70, 30), rollback_prepared(70, 30)):
        assert listened(of_others + end, size, force=force).interference is None


def test_a_transaction_that_left_in_parts() -> None:
    """Its first part, with the watermark, leaves before its commit; it counts with the commit."""
    first = FIRST + begin(2) + insert(ORDERS, 2, "b") + BAD
    log = feed([first, insert(ORDERS, 3, "c"), commit(20) + keepalive(30)], force=True, guard=guard())
    assert log.interference is not None
    assert "transaction 2, at 0/14" in log.interference.message
    assert (ids(log), log.durable) == ([1], 10)
    assert log.parts.keys() == {2}


def test_what_is_sent_again_is_not_judged_again() -> None:
    stream = FIRST + begin(2) + BAD + commit(20) + message("penstock.heartbeat", "x", 25)
    again = block(50, (50, BAD)) + block_commit(50, 28) + begin_prepare(70) + BAD + prepare(70, 29)
    after = begin(3) + insert(ORDERS, 3, "c") + commit(40)
    log = listened(stream + again + after, start=30)
    assert log.interference is None
    assert (ids(log), log.durable) == ([3], 40)


def test_foreign_prefixes_are_passed_over() -> None:
    for prefix in ("", "penstock", "penstoc", "outbox", "penstock.something", "Penstock.watermark"):
        stream = (
            FIRST + message(prefix, "x", 15) + begin(2) + message(prefix, "x") + insert(ORDERS, 2, "b") + commit(20)
        )
        stream += block(50, (50, message(prefix, "x")), (50, insert(ORDERS, 3, "c"))) + block_commit(50, 30)
        log = listened(stream)
        assert (log.interference, ids(log)) == (None, [1, 2, 3])


def test_without_a_guard_nothing_is_judged() -> None:
    log = feed([FIRST + begin(2) + BAD + WRONG["a delete"] + insert(ORDERS, 2, "b") + commit(20)])
    assert (log.interference, ids(log)) == (None, [1, 2])


def test_a_description_that_was_rolled_back_is_forgotten() -> None:
    """Other columns in a block that is rolled back are not those of the updates after it."""
    wider = relation(MARKS, "watermarks", (*META, RelationColumn("more", 25, -1)), schema="dblog_meta")
    stream = FIRST + block(50, (50, wider)) + abort(50, 50) + begin(2) + marked(low(1)) + commit(20)
    assert listened(stream).interference is None


@pytest.mark.parametrize(
    "stream",
    [
        begin(2) + message("penstock.watermark", "x", 15),
        message("penstock.watermark", "x"),
        block(50, (50, message("penstock.watermark", "x", 15))),
        begin(2) + update(MARKS, [ONE]),
        begin(2) + update(MARKS, [ONE, "x", "y"]),
        begin(2) + wal(b"U" + struct.pack(">I", MARKS) + b"N\0\x02zz"),
        begin(2) + wal(b"U" + struct.pack(">I", MARKS) + b"N\0\x02nt\0\0\0\x09x"),
        begin(2) + wal(b"U" + struct.pack(">I", MARKS) + b"K\0\x02nn"),
        begin(2) + wal(marked(low(1))[29:] + b"\0"),
    ],
)
def test_what_does_not_fit_the_protocol_is_refused(stream: bytes) -> None:
    for force in (False, True):
        with pytest.raises(ProtocolError):
            listened(FIRST + stream + begin(99), force=force)


EVERYTHING = (
    FIRST
    + begin(2) + mark(low(1)) + marked(high(1)) + truncate(ORDERS, MARKS) + commit(20)
    + message("penstock.heartbeat", Beat(US, 1).token(), 25)
    + block(50, (50, mark(low(2))), (51, BAD)) + abort(50, 51) + block_commit(50, 40)
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_garbled_marks_decode_or_are_refused(data: st.DataObject) -> None:
    """Never another error, never a hang: a byte changed, cut out or doubled, anywhere."""
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
