"""Messages to chunks: hand-built streams, split at any byte, garbled at any byte."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.postgres.decoding import DESCRIBED, ITEMS, ORDERS, TABLES, Log, feed
from tests.sources.postgres.messages import (
    COLUMNS,
    UNCHANGED,
    begin,
    buffer,
    commit,
    delete,
    framed,
    insert,
    keepalive,
    relation,
    truncate,
    update,
    wal,
)

from penstock.errors import ProtocolError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.pgoutput import decoder as decoder_module
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sources.postgres.pgoutput.relations import RelationColumn, Shape, UnknownColumnsError

STREAM = b"".join(
    [
        keepalive(90),
        begin(700, committed_at=1_000_000),
        DESCRIBED,
        insert(ORDERS, 1, "a"),
        insert(ITEMS, 10, "é"),
        insert(ORDERS, 2, None),
        commit(100),
        begin(701),
        update(ORDERS, [1, "b"]),
        update(ITEMS, [11, UNCHANGED], [10, None]),
        keepalive(95),
        update(ORDERS, [2, "c"], [2, None], b"O"),
        commit(200),
        begin(702),
        commit(210),
        begin(703),
        delete(ORDERS, [1, None]),
        delete(ORDERS, [2, "c"], b"O"),
        truncate(ITEMS, ORDERS),
        insert(ITEMS, 12, ""),
        commit(300),
        keepalive(400),
    ]
)
ORDERS_IMAGES = [
    ("orders", 100, 0, "INSERTED", (1, "a"), None),
    ("orders", 100, 2, "INSERTED", (2, None), None),
    ("orders", 200, 0, "UPDATED", (1, "b"), None),
    ("orders", 200, 2, "BEFORE", (2, None), None),
    ("orders", 200, 2, "UPDATED", (2, "c"), None),
    ("orders", 300, 0, "DELETED_KEY", (1, None), None),
    ("orders", 300, 1, "DELETED", (2, "c"), None),
    ("orders", 300, 3, "TRUNCATE", (None, None), None),
]
ITEMS_IMAGES = [
    ("items", 100, 1, "INSERTED", (10, "é"), None),
    ("items", 200, 1, "BEFORE_KEY", (10, None), None),
    ("items", 200, 1, "UPDATED", (11, None), (1,)),
    ("items", 300, 2, "TRUNCATE", (None, None), None),
    ("items", 300, 4, "INSERTED", (12, ""), None),
]


def check_stream(log: Log) -> None:
    assert log.of("orders") == ORDERS_IMAGES
    assert log.of("items") == ITEMS_IMAGES
    assert log.errors == []
    assert log.durable == 400
    assert log.parts == {}


def test_all_kinds_of_messages() -> None:
    found = Decoder(TABLES, Lsn.ZERO).decode(buffer(STREAM, 9), len(STREAM))
    assert (found.consumed, found.changes, found.more) == (len(STREAM), 11, False)
    log = Log()
    log.apply(found)
    check_stream(log)
    orders = next(chunk for chunk in found.chunks if chunk.table.name == "orders")
    assert orders.transactions.column(0).to_pylist() == [100, 200, 300]
    assert orders.transactions.column(1).to_pylist() == [700, 701, 703]
    assert orders.transactions.column(2)[0].as_py().timestamp() == 1


@pytest.mark.parametrize("force", [False, True])
def test_stream_split_at_any_byte_decodes_the_same(force: bool) -> None:
    for cut in range(len(STREAM) + 1):
        check_stream(feed([STREAM[:cut], STREAM[cut:]], force=force))


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("size", [1, 3, 7, 31, 64, 200])
def test_stream_in_small_pieces_decodes_the_same(force: bool, size: int) -> None:
    check_stream(feed((STREAM[at : at + size] for at in range(0, len(STREAM), size)), force=force))


@pytest.mark.parametrize("most", [4, 5, 8])
def test_more_changes_than_one_scan_holds(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(decoder_module, "_MOST_CHANGES", most)
    check_stream(feed([STREAM]))
    big = begin(1) + DESCRIBED + b"".join(insert(ORDERS, n, "x") for n in range(50)) + commit(50)
    log = feed([big, big[len(begin(1) + DESCRIBED) :]][:1])
    assert [image[4] for image in log.images] == [(n, "x") for n in range(50)]
    assert [image[2] for image in log.images] == list(range(50))


def test_truncate_too_large_for_one_scan_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "_MOST_CHANGES", 4)
    with pytest.raises(ProtocolError):
        feed([begin(1), DESCRIBED, truncate(*[ORDERS] * 5), commit(9)])


def test_open_transaction_stays_in_the_buffer() -> None:
    data = STREAM[: STREAM.index(commit(200))]
    found = Decoder(TABLES, Lsn.ZERO).decode(buffer(data), len(data))
    assert found.durable == 100
    assert found.consumed == STREAM.index(begin(701))


def test_large_transaction_is_emitted_in_parts_before_its_commit() -> None:
    made, log = Decoder(TABLES, Lsn.ZERO), Log()
    parts = [begin(900) + DESCRIBED, *(insert(ORDERS, n, "x") + insert(ITEMS, n, "y") for n in range(5))]
    for part in parts:
        found = made.decode(buffer(part), len(part), force=True)
        assert (found.consumed, found.durable, found.open_xid) == (len(part), None, 900)
        log.apply(found)
    assert log.images == []
    end = insert(ORDERS, 9, "z") + commit(500) + begin(901) + insert(ORDERS, 10, "n") + commit(510)
    log.apply(made.decode(buffer(end), len(end)))
    assert [(i[1], i[2], i[4]) for i in log.of("orders")] == [
        *((500, 2 * n, (n, "x")) for n in range(5)),
        (500, 10, (9, "z")),
        (510, 0, (10, "n")),
    ]
    assert [(i[1], i[2]) for i in log.of("items")] == [(500, 2 * n + 1) for n in range(5)]
    assert log.durable == 510


def test_keepalives_inside_a_transaction_do_not_advance_the_frontier() -> None:
    data = begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + keepalive(999)
    made = Decoder(TABLES, Lsn.ZERO)
    assert made.decode(buffer(data), len(data)).durable is None
    assert made.decode(buffer(data), len(data), force=True).durable is None
    more = keepalive(1000)
    assert made.decode(buffer(more), len(more)).durable is None


def test_frontier_is_never_before_the_start() -> None:
    assert feed([keepalive(40)], start=50).durable == 50
    assert feed([begin(1) + commit(30)], start=50).durable == 50


# -- transactions that the server sends again ----------------------------------------------------------------------


def test_transactions_at_or_below_the_start_are_dropped() -> None:
    for start in (0, 99, 100, 150, 200, 250, 300):
        log = feed([STREAM], start=start)
        assert log.of("orders") == [image for image in ORDERS_IMAGES if image[1] > start]
        assert log.of("items") == [image for image in ITEMS_IMAGES if image[1] > start]


def test_staged_transaction_at_or_below_the_start_is_dropped() -> None:
    pieces = [begin(7) + DESCRIBED + insert(ORDERS, 1, "a"), insert(ORDERS, 2, "b") + commit(100)]
    after = begin(8) + insert(ORDERS, 3, "c") + commit(200)
    log = feed([*pieces, after], start=100, force=True)
    assert [image[4] for image in log.images] == [(3, "c")]
    assert log.durable == 200


@pytest.mark.parametrize("force", [False, True])
def test_commit_out_of_order_is_rejected(force: bool) -> None:
    first = begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + commit(100)
    for lsn in (100, 99, 0, 2**63 - 1 + 7):
        second = begin(2) + insert(ORDERS, 2, "b") + commit(lsn)
        for pieces in ([first + second], [first, second]):
            with pytest.raises(ProtocolError, match="order"):
                feed(pieces, force=force)


# -- tables that stop ------------------------------------------------------------------------------------------------

DRIFTS: list[tuple[tuple[RelationColumn, ...], str, str]] = [
    ((COLUMNS[0], replace(COLUMNS[1], name="other")), "d", "dropped or renamed: name"),
    (COLUMNS[1:], "d", "dropped or renamed: id"),
    ((COLUMNS[0], replace(COLUMNS[1], oid=17)), "d", "changed in type: name"),
    ((COLUMNS[0], replace(COLUMNS[1], typmod=9)), "d", "changed in type: name"),
    ((COLUMNS[1], COLUMNS[0]), "d", "another order"),
    (COLUMNS, "n", "replica identity"),
    ((replace(COLUMNS[0], identity=False), replace(COLUMNS[1], identity=True)), "i", "replica identity"),
    ((replace(COLUMNS[0], identity=False), replace(COLUMNS[1], identity=True)), "d", "primary key"),
]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("columns", "identity", "expected"), DRIFTS)
def test_drift_stops_that_table_only(
    columns: tuple[RelationColumn, ...], identity: str, expected: str, force: bool
) -> None:
    stream = [
        begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + insert(ITEMS, 1, "a") + commit(100),
        begin(2) + insert(ORDERS, 2, "b"),
        relation(ORDERS, "orders", columns, identity) + insert(ORDERS, *[3, "c", "n"][: len(columns)]),
        insert(ITEMS, 2, "b") + commit(200),
        begin(3) + insert(ORDERS, *[4, "d", "n"][: len(columns)]) + insert(ITEMS, 3, "c") + commit(300),
    ]
    for pieces in (stream, [b"".join(stream)]):
        log = feed(pieces, force=force)
        assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 200)]
        assert expected in log.errors[0].message
        assert log.errors[0].hint
        assert [i[4] for i in log.of("orders") if i[1] < 200] == [(1, "a")]
        assert [i[4] for i in log.of("items")] == [(1, "a"), (2, "b"), (3, "c")]
        assert log.durable == 300


def test_replica_identity_index_on_the_key_is_not_drift() -> None:
    log = feed([begin(1) + relation(ORDERS, "orders", COLUMNS, "i") + insert(ORDERS, 1, "a") + commit(9)])
    assert (len(log.images), log.errors) == (1, [])


def test_full_replica_identity_is_not_drift() -> None:
    every = tuple(replace(column, identity=True) for column in COLUMNS)
    log = feed([begin(1) + relation(ORDERS, "orders", every, "f") + insert(ORDERS, 1, "a") + commit(9)])
    assert (len(log.images), log.errors) == (1, [])


def test_table_described_again_unchanged_continues() -> None:
    again = relation(ORDERS, "orders")
    log = feed([begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + again + insert(ORDERS, 2, "b") + commit(9)])
    assert ([i[4] for i in log.images], log.errors) == ([(1, "a"), (2, "b")], [])


@pytest.mark.parametrize(
    ("message", "oid", "expected"),
    [
        (relation(99, "orders"), 99, "dropped and created again"),
        (relation(ORDERS, "renamed"), ORDERS, "renamed to public.renamed"),
    ],
)
def test_recreated_or_renamed_table_stops(message: bytes, oid: int, expected: str) -> None:
    first = begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + commit(9)
    log = feed([first + begin(2) + message + insert(oid, 2, "b") + commit(19)])
    assert [i[4] for i in log.images] == [(1, "a")]
    assert [(error.lsn, expected in error.message) for error in log.errors] == [(19, True)]


@pytest.mark.parametrize("force", [False, True])
def test_bad_value_stops_its_table_at_that_transaction(force: bool) -> None:
    stream = [
        begin(1) + DESCRIBED + insert(ORDERS, 1, "a") + commit(100),
        begin(2) + insert(ORDERS, 2, "b"),
        insert(ITEMS, 1, "a") + insert(ORDERS, b"\xff\xfe", "c"),
        commit(200),
        begin(3) + insert(ORDERS, 4, "d") + insert(ITEMS, 2, "b") + commit(300),
        begin(4) + insert(ITEMS, 3, "c") + insert(ORDERS, b"\xff", "e") + commit(400),
    ]
    for pieces in (stream, [b"".join(stream)]):
        log = feed(pieces, force=force)
        assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 200)]
        assert "column id" in log.errors[0].message
        assert "\\xff" not in str(log.errors[0])
        assert [i[4] for i in log.of("orders") if i[1] < 200] == [(1, "a")]
        assert [i[4] for i in log.of("items")] == [(1, "a"), (2, "b"), (3, "c")]


def test_earliest_failure_of_a_table_is_reported() -> None:
    """Drift is detected while scanning, a bad value only when columns are built: the order in the stream decides."""
    log = feed(
        [
            begin(1) + DESCRIBED + insert(ORDERS, b"\xff", "a") + commit(100)
            + begin(2) + insert(ORDERS, 2, "b") + commit(200)
            + begin(3) + relation(ORDERS, "orders", COLUMNS[:1]) + insert(ORDERS, 3) + commit(300)
        ]
    )  # fmt: skip
    assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 100)]
    assert "column id" in log.errors[0].message
    assert log.images == []


def test_both_tables_can_stop() -> None:
    log = feed(
        [
            begin(1) + DESCRIBED + insert(ORDERS, b"\xff", "a") + commit(100),
            begin(2) + relation(ITEMS, "items", COLUMNS[1:]) + insert(ITEMS, 1) + commit(200),
            begin(3) + insert(ITEMS, 1) + insert(ORDERS, 1, "a") + commit(300),
        ]
    )
    assert [(error.table, error.lsn) for error in log.errors] == [("public.orders", 100), ("public.items", 200)]
    assert (log.images, log.durable) == ([], 300)


def test_stopped_table_stays_stopped() -> None:
    log = feed([STREAM], ended=[TableName("public", "orders")])
    assert log.of("orders") == []
    assert log.of("items") == ITEMS_IMAGES
    assert log.errors == []


def test_other_tables_are_skipped() -> None:
    log = feed(
        [
            begin(1)
            + relation(5, "others")
            + insert(5, 1, "x")
            + truncate(5)
            + DESCRIBED
            + insert(ORDERS, 1, "a")
            + commit(9)
        ]
    )
    assert [(i[2], i[4]) for i in log.images] == [(2, (1, "a"))]


# -- malformed messages ----------------------------------------------------------------------------------------------

OPEN_TRANSACTION = begin(1) + DESCRIBED


def tampered(message: bytes, payload: bytes) -> bytes:
    return framed(message[4:29] + payload)


def malformed() -> dict[str, bytes]:
    change = insert(ORDERS, 1, "abc")[29:]
    cases = {
        "empty message": framed(b""),
        "unknown envelope": framed(b"x" + bytes(30)),
        "no payload": framed(b"w" + bytes(24)),
        "short keepalive": framed(b"k" + bytes(16)),
        "long keepalive": framed(b"k" + bytes(18)),
        "unknown kind": wal(b"?abcdef"),
        "stream start": wal(b"S" + bytes(5)),
        "logical message": wal(b"M" + bytes(20)),
        "begin in a transaction": begin(2),
        "short begin": wal(b"B" + bytes(19)),
        "long commit": wal(b"C" + bytes(26)),
        "relation not described": insert(4711, 1, "a"),
        "truncate not described": truncate(ORDERS, 4711),
        "truncate with wrong count": wal(b"T" + struct.pack(">IB", 2, 0) + struct.pack(">I", ORDERS)),
        "truncate with a huge count": wal(b"T" + struct.pack(">IB", 0xFFFFFFFF, 0) + struct.pack(">I", ORDERS)),
        "too few columns": insert(ORDERS, 1),
        "too many columns": insert(ORDERS, 1, "a", "b"),
        "unknown tag": wal(b"I" + struct.pack(">I", ORDERS) + b"N\0\x02" + b"zz"),
        "unknown role": wal(b"I" + struct.pack(">I", ORDERS) + b"X\0\x02nn"),
        "old row of an insert": wal(b"I" + struct.pack(">I", ORDERS) + b"K\0\x02nn"),
        "new row of a delete": wal(b"D" + struct.pack(">I", ORDERS) + b"N\0\x02nn"),
        "two old rows": wal(b"U" + struct.pack(">I", ORDERS) + 2 * b"K\0\x02nn" + b"N\0\x02nn"),
        "update without a new row": wal(b"U" + struct.pack(">I", ORDERS) + b"K\0\x02nn"),
        "unchanged in an insert": insert(ORDERS, 1, UNCHANGED),
        "unchanged in a key": update(ORDERS, [1, "a"], [UNCHANGED, None]),
        "bytes after a change": wal(change + b"\0"),
        "length beyond the message": wal(change[:-7] + struct.pack(">I", 4) + b"abc"),
        "length beyond everything": wal(change[:-7] + struct.pack(">I", 0xFFFFFFFF) + b"abc"),
        "text and binary": insert(ORDERS, 1, "a")
        + wal(b"I" + struct.pack(">I", ORDERS) + b"N\0\x02n" + b"t\0\0\0\x01a"),
    }
    old_and_new = update(ORDERS, [1, "a"], [2, None])
    every = (insert(ORDERS, 1, "abc"), old_and_new, delete(ORDERS, [1, None]), truncate(ORDERS), begin(9), commit(9))
    for whole in every:
        cases |= {f"{whole[29:30]!r} cut at {cut}": framed(whole[4:cut]) for cut in range(29, len(whole))}
    described = relation(ORDERS, "orders")
    cases |= {f"relation cut at {cut}": framed(described[4:cut]) for cut in range(30, len(described))}
    cases["relation followed by bytes"] = framed(described[4:] + b"\0")
    cases["relation not in UTF-8"] = described.replace(b"orders", b"\xffrders")
    return cases


CASES = malformed()


@pytest.mark.parametrize("force", [False, True])
def test_malformed_messages_fail_closed(force: bool) -> None:
    for name, message in CASES.items():
        try:
            log = feed([OPEN_TRANSACTION + message + commit(100)], force=force)
        except ProtocolError as error:
            assert error.hint
        else:
            pytest.fail(f"{name} was accepted: {log}")


@pytest.mark.parametrize("message", [insert(ORDERS, 1, "a"), truncate(ORDERS), commit(9)])
def test_changes_outside_a_transaction_are_rejected(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        feed([begin(1) + DESCRIBED + commit(5) + message])


def test_error_names_the_message_kind_and_no_values() -> None:
    with pytest.raises(ProtocolError, match=r"unknown replication message \('Z'\)"):
        feed([OPEN_TRANSACTION + wal(b"Zsecret")])


def decode_garbled(data: bytes, pieces: int = 1) -> None:
    """Decode garbled bytes: this succeeds, raises `ProtocolError`, or finds columns to look up, and nothing else."""
    made, rest, step = Decoder(TABLES, Lsn.ZERO), b"", -(-len(data) // pieces)
    with contextlib.suppress(ProtocolError, UnknownColumnsError):
        for at in range(0, len(data), step):
            rest += data[at : at + step]
            found = made.decode(buffer(rest, slack=40), len(rest), force=pieces > 1)
            rest = rest[found.consumed :]
            for chunk in (*found.chunks, *found.open_chunks):
                chunk.images.validate()


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(1, 255)), min_size=1, max_size=6), st.integers(1, 4)
)
def test_flipped_bytes(flips: list[tuple[int, int]], pieces: int) -> None:
    garbled = bytearray(STREAM)
    for at, mask in flips:
        garbled[at] ^= mask
    decode_garbled(bytes(garbled), pieces)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_inside_a_frame(payload: bytes) -> None:
    decode_garbled(OPEN_TRANSACTION + wal(payload) + commit(100))
    decode_garbled(OPEN_TRANSACTION + framed(payload) + commit(100))


@pytest.mark.deep
def test_no_kernel_reads_out_of_bounds(tmp_path: Path) -> None:
    """The same streams with numba's bounds checks, in a separate process, which compiles the kernels for it."""
    program = """
import random, sys
from tests.sources.postgres import test_decoder as t
t.test_malformed_messages_fail_closed(False)
t.check_stream(t.feed([t.STREAM]))
rng = random.Random(7)
for _ in range(3000):
    garbled = bytearray(t.STREAM)
    for _ in range(rng.randint(1, 5)):
        garbled[rng.randrange(len(garbled))] ^= rng.randint(1, 255)
    t.decode_garbled(bytes(garbled), rng.randint(1, 3))
"""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parent.parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_buffers_are_not_written_to() -> None:
    data = buffer(STREAM)
    before = data.copy()
    Decoder(TABLES, Lsn.ZERO).decode(data, len(data))
    assert np.array_equal(data, before)


def test_table_without_columns_stops_only_itself() -> None:
    """A row without columns cannot be stored. Preflight rejects such a table; an older source may still have one."""
    bare = Shape.of(CapturedTable(name=TableName("public", "bare"), oid=7, key=(), columns=()), 1)
    stream = (
        begin(700)
        + DESCRIBED
        + relation(7, "bare", (), identity="f")
        + insert(ORDERS, 1, "a")
        + insert(7)
        + commit(100)
    )
    log = feed([stream, begin(701) + insert(7) + insert(ORDERS, 2, "b") + commit(200)], shapes=[*TABLES, bare])
    (error,) = log.errors
    assert (error.table, error.lsn) == ("public.bare", 100)
    assert "no columns" in error.message
    assert [image[4] for image in log.images] == [(1, "a"), (2, "b")]
