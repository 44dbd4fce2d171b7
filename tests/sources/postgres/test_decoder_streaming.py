"""Transactions that arrive in parts: streamed in blocks while they run, prepared, and with columns added in between."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.postgres.decoding import DESCRIBED, ITEMS, ORDERS, TABLES, WIDER, WIDER_COLUMNS, Log, feed
from tests.sources.postgres.messages import (
    COLUMNS,
    UNCHANGED,
    abort,
    begin,
    begin_prepare,
    block,
    block_commit,
    buffer,
    commit,
    commit_prepared,
    insert,
    keepalive,
    prepare,
    relation,
    rollback_prepared,
    truncate,
    update,
    wal,
)

from penstock.errors import ProtocolError, SchemaChangeError
from penstock.fields import with_fields
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sources.postgres.pgoutput.relations import RejectedShape, RelationColumn, Shape, UnknownColumnsError

FIRST = begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + commit(10)


def rows(log: Log, table: str = "orders") -> list[tuple[int, int, int]]:
    """LSN, ordinal and id of a table's images."""
    return [(image[1], image[2], image[4][0]) for image in log.of(table) if image[4] is not None]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


BLOCKS = (
    FIRST
    + block(50, (50, insert(ORDERS, 10, "x")), (51, insert(ORDERS, 11, "x")), (51, insert(ITEMS, 11, "x")))
    + begin(2) + insert(ORDERS, 2, "b") + commit(20)
    + block(60, (60, insert(ORDERS, 20, "x")))
    + keepalive(21)
    + block(50, (50, truncate(ITEMS)), (52, insert(ORDERS, 12, "x")), first=False)
    + abort(50, 51)
    + begin(3) + insert(ORDERS, 3, "c") + commit(30)
    + block_commit(50, 40, 7)
    + begin(4) + insert(ORDERS, 4, "d") + commit(50)
    + abort(60, 60)
    + keepalive(60)
)  # fmt: skip


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("size", [1, 7, 30, 61, 100, 10_000])
def test_blocks_are_published_at_commit_without_rolled_back_changes(size: int, force: bool) -> None:
    log = feed(pieces(BLOCKS, size), force=force)
    assert rows(log) == [(10, 0, 1), (20, 0, 2), (30, 0, 3), (40, 0, 10), (40, 4, 12), (50, 0, 4)]
    assert [(image[1], image[2], image[3]) for image in log.of("items")] == [(40, 3, "TRUNCATE")]
    assert (log.durable, log.parts, log.errors) == (60, {}, [])


def test_ordinals_increase_with_gaps() -> None:
    """As documented: changes that are rolled back later, and changes of other tables, also use an ordinal."""
    streamed = block(50, (51, insert(ORDERS, 1, "x")), (50, insert(ORDERS, 2, "x")), (52, insert(ORDERS, 3, "x")))
    streamed += block(50, (50, insert(ORDERS, 4, "x")), first=False) + abort(50, 51) + abort(50, 52)
    log = feed([FIRST + streamed + block_commit(50, 40)])
    assert rows(log) == [(10, 0, 1), (40, 1, 2), (40, 3, 4)]
    others = ITEMS + 1
    foreign = insert(ORDERS, 5, "x") + relation(others, "others") + insert(others, 1, "x") + insert(ORDERS, 6, "x")
    assert rows(feed([FIRST + begin(2) + foreign + commit(20)])) == [(10, 0, 1), (20, 0, 5), (20, 2, 6)]


def test_resent_blocks_are_not_duplicated() -> None:
    log = feed([BLOCKS], start=40)
    assert rows(log) == [(50, 0, 4)]
    assert log.parts == {}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_prepared_transaction_waits_for_its_commit(streamed: bool, force: bool) -> None:
    changes = insert(ORDERS, 5, "x") + insert(ITEMS, 5, "x")
    part = (
        block(70, (70, insert(ORDERS, 5, "x")), (70, insert(ITEMS, 5, "x")))
        if streamed
        else begin_prepare(70) + changes
    )
    prepared = FIRST + part + prepare(70, 15, streamed) + begin(2) + insert(ORDERS, 2, "b") + commit(20)
    for size in (1, 33, 10_000):
        log = feed(pieces(prepared, size), force=force)
        assert (rows(log), list(log.parts), log.prepared) == ([(10, 0, 1), (20, 0, 2)], [70], {70})
        log = feed(pieces(prepared + commit_prepared(70, 30), size), force=force)
        assert (rows(log), rows(log, "items")) == ([(10, 0, 1), (20, 0, 2), (30, 0, 5)], [(30, 1, 5)])
        log = feed(pieces(prepared + rollback_prepared(70, 30), size), force=force)
        assert (rows(log), log.parts) == ([(10, 0, 1), (20, 0, 2)], {})


def test_relation_described_in_a_block_applies_to_others_only_after_commit() -> None:
    """Postgres describes a table for each streamed transaction separately."""
    described = block(50, (50, relation(ORDERS, "orders")), (50, insert(ORDERS, 1, "a")))
    with pytest.raises(ProtocolError, match="undescribed"):
        feed([described + begin(2) + insert(ORDERS, 2, "b") + commit(20)])
    log = feed([described + block_commit(50, 10) + begin(2) + insert(ORDERS, 2, "b") + commit(20)])
    assert rows(log) == [(10, 0, 1), (20, 0, 2)]
    with pytest.raises(ProtocolError, match="undescribed"):
        feed([described + abort(50, 50) + begin(2) + insert(ORDERS, 2, "b") + commit(20)])


@pytest.mark.parametrize("force", [False, True])
def test_failure_in_a_rolled_back_part_stops_no_table(force: bool) -> None:
    narrow = relation(ORDERS, "orders", COLUMNS[:1])
    again = relation(ORDERS, "orders")
    bad = block(
        50, (51, insert(ORDERS, b"\xff", "x")), (50, insert(ORDERS, 10, "y")), (52, narrow), (52, insert(ORDERS, 7))
    )
    more = block(50, (50, again), (50, insert(ORDERS, 11, "z")), first=False)
    stream = FIRST + bad + abort(50, 51) + abort(50, 52) + more + block_commit(50, 40)
    log = feed([stream], force=force)
    assert (rows(log), log.errors) == ([(10, 0, 1), (40, 1, 10), (40, 3, 11)], [])
    log = feed(
        [FIRST + bad + abort(50, 51) + more + block_commit(50, 40) + begin(9) + insert(ORDERS, 9, "z") + commit(50)],
        learned=RejectedShape(WIDER.name, "its columns changed upstream"),
    )
    assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 40)]
    assert [row for row in rows(log) if row[0] > 40] == []
    log = feed([FIRST + bad + abort(50, 50) + begin(9) + again + insert(ORDERS, 9, "z") + commit(50)])
    assert (rows(log), log.errors) == ([(10, 0, 1), (50, 0, 9)], [])


def test_failure_in_a_prepared_transaction_stops_its_table_at_prepare() -> None:
    stream = FIRST + begin_prepare(70) + insert(ORDERS, b"\xff", "x") + insert(ITEMS, 1, "x") + prepare(70, 15)
    log = feed([stream + commit_prepared(70, 30) + begin(2) + insert(ORDERS, 2, "b") + commit(40)])
    assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 15)]
    assert (rows(log), rows(log, "items")) == ([(10, 0, 1)], [(30, 1, 1)])


# -- added columns ---------------------------------------------------------------------------------------------------

ADDED = relation(ORDERS, "orders", WIDER_COLUMNS)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_added_column_continues_in_a_new_schema_version(size: int, force: bool) -> None:
    stream = (
        FIRST
        + begin(2) + insert(ORDERS, 2, "b") + ADDED + insert(ORDERS, 3, "c", "n") + commit(20)
        + begin(3) + update(ORDERS, [3, "d", UNCHANGED]) + commit(30)
    )  # fmt: skip
    log = feed(pieces(stream, size), force=force)
    assert [image[4] for image in log.of("orders")] == [(1, "a"), (2, "b"), (3, "c", "n"), (3, "d", None)]
    assert log.errors == []
    again = feed([begin(4) + ADDED + insert(ORDERS, 4, "d", "n") + commit(40)], shapes=[WIDER, TABLES[1]], start=30)
    assert [image[4] for image in again.of("orders")] == [(4, "d", "n")]


DROPPED = relation(ORDERS, "orders", COLUMNS[:1])


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_dropped_column_is_null_from_then_on(size: int, force: bool) -> None:
    """It stays so when a column is added later, and in a transaction that was begun before."""
    wider = relation(ORDERS, "orders", (COLUMNS[0], WIDER_COLUMNS[2]))
    stream = (
        FIRST
        + begin(2) + insert(ORDERS, 2, "b") + DROPPED + insert(ORDERS, 3) + update(ORDERS, [2]) + commit(20)
        + begin(3) + insert(ORDERS, 4) + commit(30)
    )  # fmt: skip
    log = feed(pieces(stream, size), force=force)
    assert [image[4] for image in log.of("orders")] == [(1, "a"), (2, "b"), (3, None), (2, None), (4, None)]
    assert log.errors == []
    table = with_fields(WIDER.table, absent=("name",))
    added = begin(4) + wider + insert(ORDERS, 5, "n") + commit(40)
    log = feed(pieces(stream + added, size), force=force, learned=Shape.of(table, WIDER.version))
    assert [image[4] for image in log.of("orders")][-2:] == [(4, None), (5, None, "n")]


def test_dropping_an_added_column_continues() -> None:
    stream = FIRST + begin(2) + ADDED + insert(ORDERS, 3, "c", "n") + commit(20)
    log = feed([stream + begin(3) + relation(ORDERS, "orders") + insert(ORDERS, 4, "d") + commit(30)])
    assert [image[4] for image in log.of("orders")] == [(1, "a"), (3, "c", "n"), (4, "d", None)]
    assert log.errors == []


def test_dropped_column_that_is_not_proven_stops_the_table() -> None:
    stream = FIRST + begin(2) + DROPPED + insert(ORDERS, 3) + commit(20)
    log = feed([stream], learned=RejectedShape(WIDER.name, "its columns changed upstream"))
    assert [(error.lsn, type(error)) for error in log.errors] == [(20, SchemaChangeError)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (COLUMNS, "dropped upstream and added again: name"),
        ((COLUMNS[0], WIDER_COLUMNS[2], COLUMNS[1]), "dropped upstream and added again: name"),
    ],
)
def test_column_that_is_added_again_under_its_name_stops_the_table(
    columns: tuple[RelationColumn, ...], expected: str
) -> None:
    stream = FIRST + begin(2) + DROPPED + insert(ORDERS, 3) + commit(20)
    again = relation(ORDERS, "orders", columns) + insert(ORDERS, 4, *"de"[: len(columns) - 1])
    log = feed([stream + begin(3) + again + commit(30)])
    assert [(error.lsn, expected in error.message) for error in log.errors] == [(30, True)]


def test_column_that_is_dropped_while_another_one_appears_stops_the_table() -> None:
    """The other one might be the first one under another name."""
    both = relation(ORDERS, "orders", (COLUMNS[0], WIDER_COLUMNS[2]))
    log = feed([FIRST + begin(2) + both + insert(ORDERS, 3, "c") + commit(20)])
    assert ["dropped or renamed: name" in error.message for error in log.errors] == [True]


def test_rolled_back_drop_leaves_the_column() -> None:
    """The transaction with the drop arrives in parts, and is rolled back."""
    stream = (
        FIRST
        + block(7, (7, DROPPED), (7, insert(ORDERS, 3)))
        + abort(7, 7)
        + begin(3)
        + relation(ORDERS, "orders")
        + insert(ORDERS, 4, "d")
        + commit(30)
    )
    log = feed([stream])
    assert [image[4] for image in log.of("orders")] == [(1, "a"), (4, "d")]
    assert log.errors == []


def test_column_added_and_dropped_in_one_transaction_stops_the_table() -> None:
    both = block(50, (50, ADDED), (50, insert(ORDERS, 3, "c", "n")), (50, relation(ORDERS, "orders")))
    more = block(50, (50, insert(ORDERS, 4, "d")), first=False)
    log = feed([FIRST + both + more + block_commit(50, 40)])
    assert [(error.lsn, "dropped again" in error.message) for error in log.errors] == [(40, True)]


def test_rolled_back_column_addition_has_no_effect() -> None:
    block_ = block(50, (51, ADDED), (51, insert(ORDERS, 3, "c", "n")), (50, insert(ITEMS, 1, "a")))
    stream = FIRST + block_ + abort(50, 51) + block_commit(50, 40)
    log = feed([stream + begin(3) + relation(ORDERS, "orders") + insert(ORDERS, 4, "d") + commit(50)])
    assert ([image[4] for image in log.of("orders")], log.errors) == ([(1, "a"), (4, "d")], [])


def test_rejected_added_column_stops_the_table() -> None:
    why = RejectedShape(TableName("public", "orders"), "column note was added upstream, with unknown values")
    log = feed(
        [FIRST + begin(2) + ADDED + insert(ORDERS, 3, "c", "n") + insert(ITEMS, 3, "c") + commit(20)], learned=why
    )
    assert [(error.lsn, "unknown values" in error.message) for error in log.errors] == [(20, True)]
    assert [image[4] for image in log.images] == [(1, "a"), (3, "c")]


# -- protocol violations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        wal(b"E"),
        begin(1) + block(50) + commit(9),
        begin(1) + block_commit(50, 9),
        wal(b"S\0\0\0\x32\1") + wal(b"S\0\0\0\x33\1"),
        wal(b"S\0\0\0\x32\1") + commit(9),
        wal(b"S\0\0\0\x32\1") + begin_prepare(51),
        wal(b"S\0\0\0\x32"),
        wal(b"E\0"),
        wal(b"A\0\0\0\x32"),
        wal(b"c" + bytes(28)),
        begin_prepare(1) + commit(9),
        wal(b"b" + bytes(28)),
        wal(b"K" + bytes(29) + b"unended"),
        wal(b"r" + bytes(29) + b"\0"),
        wal(b"M\0" + bytes(8) + b"prefix\0\0\0\0\5four"),
        wal(b"M\0" + bytes(8) + b"unended"),
        wal(b"O" + bytes(8) + b"unended"),
        wal(b"Y" + bytes(4) + b"schema\0unended"),
        block_commit(50, 9) + block_commit(51, 9),
    ],
)
def test_protocol_violations_are_rejected(stream: bytes) -> None:
    for force in (False, True):
        with pytest.raises(ProtocolError):
            feed([stream + begin(99)], force=force)


def test_logical_messages_origins_and_types_are_skipped() -> None:
    message = wal(b"M\0" + bytes(8) + b"prefix\0\0\0\0\4four")
    origin, kind = wal(b"O" + bytes(8) + b"node\0"), wal(b"Y" + bytes(4) + b"public\0mood\0")
    stream = message + begin(1) + origin + kind + DESCRIBED + message + insert(ORDERS, 1, "a") + commit(10)
    stream += block(50, (50, message), (50, kind), (50, insert(ORDERS, 2, "b"))) + block_commit(50, 20)
    assert rows(feed([stream])) == [(10, 0, 1), (20, 0, 2)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_interleaving_of_transactions_yields_the_committed_changes(data: st.DataObject) -> None:
    """Streamed and complete transactions, with rolled-back subtransactions, split at any byte: compared with a list."""
    lsns, keys = itertools.count(20, 10), itertools.count(100)
    stream, expected = FIRST, [(10, 1)]
    running: dict[int, dict[int, list[int]]] = {}
    rolled_back: set[int] = set()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["whole", "block", "block", "abort part", "commit", "abort"])):
            case "whole":
                lsn, key = next(lsns), next(keys)
                stream += begin(lsn) + insert(ORDERS, key, "x") + commit(lsn)
                expected.append((lsn, key))
            case "block":
                xid = data.draw(st.sampled_from([1000, 2000]))
                subs = data.draw(st.lists(st.integers(xid, xid + 3), max_size=5))
                changes = [(sub, next(keys)) for sub in subs if sub not in rolled_back]
                stream += block(xid, *((s, insert(ORDERS, key, "x")) for s, key in changes), first=xid not in running)
                for sub, key in changes:
                    running.setdefault(xid, {}).setdefault(sub, []).append(key)
                running.setdefault(xid, {})
            case "abort part" if running:
                xid = data.draw(st.sampled_from(sorted(running)))
                sub = data.draw(st.integers(xid + 1, xid + 3))
                stream += abort(xid, sub)
                running[xid].pop(sub, None)
                rolled_back.add(sub)
            case "commit" if running:
                xid, lsn = data.draw(st.sampled_from(sorted(running))), next(lsns)
                stream += block_commit(xid, lsn)
                expected += sorted((lsn, key) for keys_ in running.pop(xid).values() for key in keys_)
                rolled_back -= set(range(xid, xid + 4))
            case "abort" if running:
                xid = data.draw(st.sampled_from(sorted(running)))
                stream += abort(xid, xid)
                del running[xid]
                rolled_back -= set(range(xid, xid + 4))
    size = data.draw(st.integers(20, 400))
    log = feed(pieces(stream, size), force=data.draw(st.booleans()))
    assert [(lsn, key) for lsn, _, key in rows(log)] == expected


PREPARED = FIRST + begin_prepare(70) + insert(ORDERS, 5, "x") + prepare(70, 15) + commit_prepared(70, 30)
WIDENED = FIRST + begin(2) + ADDED + insert(ORDERS, 3, "c", "n") + commit(20)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_garbled_streams_decode_or_are_rejected(data: st.DataObject) -> None:
    """No other error and no hang, with bytes changed, removed or doubled anywhere."""
    stream = bytearray(data.draw(st.sampled_from([BLOCKS, PREPARED, WIDENED])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                stream[at] = data.draw(st.integers(0, 255))
            case "cut":
                del stream[at : at + data.draw(st.integers(1, 40))]
            case "double":
                stream[at:at] = stream[at : at + data.draw(st.integers(1, 40))]
        if not stream:
            return
    made, rest, force = Decoder(TABLES, Lsn.ZERO), b"", data.draw(st.booleans())
    with contextlib.suppress(ProtocolError, UnknownColumnsError):
        for piece in pieces(bytes(stream), data.draw(st.integers(30, 500))):
            rest, more = rest + piece, True
            while more:
                found = made.decode(buffer(rest, slack=40), len(rest), force=force)
                assert not found.more or found.consumed
                rest, more = rest[found.consumed :], found.more
