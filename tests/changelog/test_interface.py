"""The contract of a change log, tested on every implementation in `LOGS`."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from tests.changelog.chunks import COLUMNS, ITEMS, ORDERS, Row, batches, chunk, inserted, read
from tests.changelog.conftest import START

from penstock.changelog.interface import (
    ChangeLog,
    ChangeLogReader,
    ChangeLogWriter,
    Chunk,
    Commit,
    Discarded,
    Extent,
    Prepared,
    StagedCommit,
)
from penstock.errors import DefiniteError, SchemaChangeError, TableError
from penstock.model import Image, TableName, TableSchema, with_missing
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

HOURS = 100 * PATIENCE
"""A wait with this timeout ends only because the frontier advanced."""


def test_a_new_log_is_empty(reader: ChangeLogReader) -> None:
    found = reader.frontiers()
    assert (found.valid, found.durable, found.committed_at, found.published_at) == (START, START, None, None)
    assert found.passed == found.valid_at, "no time has passed yet"
    assert reader.tables() == {}
    assert reader.extent(ORDERS.table, START, Lsn(100)) == Extent(ORDERS.table, START, Lsn(100))
    assert read(reader, ORDERS) == []


def test_images_come_back_in_order_with_their_transaction(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    rows = [
        inserted(20, 0),
        Row(20, 1, Image.BEFORE, (1, "old")),
        Row(20, 1, Image.UPDATED, (1, None), (1,)),
        Row(30, 0, Image.DELETED_KEY, (1, None)),
        Row(40, 0, Image.TRUNCATE, None),
    ]
    writer.publish([chunk(ORDERS, rows[:3])], Lsn(20), committed_at=20)
    writer.publish([chunk(ORDERS, rows[3:])], Lsn(40), committed_at=40)
    assert read(reader, ORDERS) == rows
    found_batches = batches(reader, ORDERS)
    shared = [(r["_xid"], r["_committed_at"].microsecond) for batch in found_batches for r in batch.to_pylist()]
    assert shared == [(21, 20)] * 3 + [(31, 30), (41, 40)]
    found = reader.frontiers()
    assert found.durable == 40
    assert found.committed_at is not None
    assert found.published_at is not None
    assert found.committed_at.microsecond == 40


def test_ranges_cut_inside_chunks(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    rows = [inserted(lsn, ordinal) for lsn in (20, 30, 40, 50, 60) for ordinal in range(lsn // 20)]
    writer.publish([chunk(ORDERS, [row for row in rows if row.lsn <= 30])], Lsn(30))
    writer.publish([chunk(ORDERS, [row for row in rows if row.lsn > 30])], Lsn(60))
    for after, upto in itertools.product(range(19, 62, 5), repeat=2):
        wanted = [row for row in rows if after < row.lsn <= upto]
        assert read(reader, ORDERS, after, upto) == wanted
        extent = reader.extent(ORDERS.table, Lsn(after), Lsn(upto))
        assert extent.rows >= len(wanted)
        parts = [pickle.loads(pickle.dumps(part)) for part in extent.divided(1)]
        assert [len(part.chunks) for part in parts] == [1] * len(extent.chunks)
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == len(wanted)
        assert sum(batch.num_rows for part in extent.divided(1 << 30) for batch in reader.read(part)) == len(wanted)


def test_extent_describes_the_contents_of_a_range(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(20), Row(25, 0, Image.UPDATED, (1, None), (1,))])], Lsn(25))
    writer.publish([chunk(ORDERS, [Row(30, 0, Image.DELETED_KEY, (1, None))])], Lsn(30))
    whole = reader.extent(ORDERS.table, Lsn(10), Lsn(30))
    assert (len(whole.chunks), whole.rows, whole.unchanged) == (2, 3, True)
    assert [(chunk.first, chunk.last) for chunk in whole.chunks] == [(20, 25), (30, 30)]
    assert [image for image in Image if whole.has(image)] == [Image.DELETED_KEY, Image.UPDATED, Image.INSERTED]
    assert whole.size > 0
    last = reader.extent(ORDERS.table, Lsn(25), Lsn(30))
    assert (last.rows, last.unchanged, last.has(Image.INSERTED)) == (1, False, False)


def test_reading_a_range_again_gives_equal_batches(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    for lsn in range(20, 30):
        writer.publish([chunk(ORDERS, [inserted(lsn, n) for n in range(50)])], Lsn(lsn))
    before = batches(reader, ORDERS, 22, 27)
    for lsn in range(30, 40):
        writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn))
    again = batches(reader, ORDERS, 22, 27)
    assert sum(batch.num_rows for batch in before) == 5 * 50
    assert all(a.equals(b) for a, b in zip(before, again, strict=True))


def test_all_tables_advance_in_one_step(log: ChangeLog, writer: ChangeLogWriter) -> None:
    """A reader that polls continuously never sees one table ahead of the other within `durable`."""
    stop, torn, polled = threading.Event(), [], []

    def poll() -> None:
        with closing(log.reader()) as mine:
            while not stop.is_set():
                durable = mine.frontiers().durable
                counts = [len(read(mine, table, 0, durable)) for table in (ORDERS, ITEMS)]
                polled.append(durable)
                if counts != [durable - START] * 2:
                    torn.append((durable, counts))

    thread = threading.Thread(target=poll)
    thread.start()
    lsns = itertools.count(11)

    def published() -> bool:
        for lsn in itertools.islice(lsns, 10):
            writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn))
        return lsn >= 60 and len(set(polled)) > 2

    until(published, "polls at several positions")
    stop.set()
    thread.join()
    assert torn == []
    assert polled == sorted(polled)


def test_staged_parts_are_visible_once_published_and_come_first(
    writer: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    writer.stage(777, [chunk(ORDERS, [inserted(-1, 0), inserted(-1, 1)]), chunk(ITEMS, [inserted(-1, 2)])])
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
    writer.stage(777, [chunk(ORDERS, [inserted(-1, 3)])])
    assert [row.lsn for row in read(reader, ORDERS)] == [20]
    assert read(reader, ITEMS) == []
    assert reader.extent(ORDERS.table, START, Lsn(100)).rows == 1
    writer.publish(
        [chunk(ORDERS, [inserted(30, 4), inserted(40, 0)])], Lsn(40), staged={777: StagedCommit(Lsn(30), 30)}
    )
    places = [(row.lsn, row.ordinal) for row in read(reader, ORDERS)]
    assert places == [(20, 0), (30, 0), (30, 1), (30, 3), (30, 4), (40, 0)]
    assert [(row.lsn, row.ordinal) for row in read(reader, ITEMS)] == [(30, 2)]
    assert [(row.lsn, row.ordinal) for row in read(reader, ORDERS, 20, 30)] == places[1:5]


def test_staged_parts_of_other_transactions_stay_hidden(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.stage(777, [chunk(ORDERS, [inserted(-1)])])
    writer.stage(778, [chunk(ORDERS, [inserted(-1, 1)])])
    writer.publish([], Lsn(30), staged={778: StagedCommit(Lsn(30), 30)})
    assert [(row.lsn, row.ordinal) for row in read(reader, ORDERS)] == [(30, 1)]


def test_staged_parts_of_a_closed_writer_are_dropped(log: ChangeLog, reader: ChangeLogReader) -> None:
    with closing(log.writer()) as first:
        first.define(ORDERS)
        first.stage(777, [chunk(ORDERS, [inserted(-1)])])
    with closing(log.writer()) as second:
        second.define(ORDERS)
        second.publish([chunk(ORDERS, [inserted(30)])], Lsn(30), staged={777: StagedCommit(Lsn(30), 30)})
    assert read(reader, ORDERS) == [inserted(30)]


def part(*rows: tuple[int, int, int]) -> Chunk:
    """Part of a staged transaction: subtransaction, ordinal and id of each row."""
    original = chunk(ORDERS, [Row(sub, ordinal, Image.INSERTED, (id_, "x")) for sub, ordinal, id_ in rows])
    unknown = pa.array([-1] * len(original.transactions))
    xids = pa.array([lsn.as_py() for lsn in original.transactions.column(0)])
    columns = [unknown, xids, original.transactions.column(2)]
    return replace(original, transactions=pa.RecordBatch.from_arrays(columns, schema=original.transactions.schema))


def ids(reader: ChangeLogReader) -> list[tuple[int, int]]:
    """LSN and id of all orders."""
    return [(row.lsn, row.values[0]) for row in read(reader, ORDERS) if row.values and row.values[0] is not None]


def test_rolled_back_subtransactions_are_removed(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.stage(7, [part((7, 0, 10), (8, 1, 11), (7, 2, 12), (9, 3, 13))])
    writer.stage(7, [part((8, 4, 14))])
    writer.stage(7, [part((7, 5, 15), (9, 6, 16))])
    writer.publish([], Lsn(30), committed_at=30, staged={7: StagedCommit(Lsn(30), 30, frozenset({8}))})
    assert ids(reader) == [(30, id_) for id_ in (10, 12, 13, 15, 16)]
    assert reader.extent(ORDERS.table, START, Lsn(100)).rows == 5
    (batch, *_) = batches(reader, ORDERS)
    assert set(batch.column("_xid").to_pylist()) == {7}, "the xid of the transaction, not of a subtransaction"
    assert {moment.microsecond for moment in batch.column("_committed_at").to_pylist()} == {30}


def test_changes_are_counted_once_each(log: ChangeLog, writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    """An update with its old row is one change; rolled-back and discarded changes are none."""
    update = [Row(20, 1, Image.BEFORE, (1, "old")), Row(20, 1, Image.UPDATED, (1, "new"))]
    moved = [Row(20, 2, Image.BEFORE_KEY, (1, None)), Row(20, 2, Image.UPDATED, (2, "new"))]
    ended = [Row(20, 3, Image.DELETED_KEY, (2, None)), Row(20, 4, Image.TRUNCATE, None)]
    whole = chunk(ORDERS, [inserted(20), *update, *moved])
    assert [replace(whole, images=whole.images.slice(n)).changes for n in range(6)] == [3, 2, 2, 1, 1, 0]
    assert reader.changes().get(ORDERS.table, 0) == 0
    writer.publish([chunk(ORDERS, [inserted(20), *update, *moved, *ended])], Lsn(20), committed_at=20)
    assert reader.changes() == {ORDERS.table: 5, ITEMS.table: 0}
    writer.stage(7, [part((7, 0, 10), (8, 1, 11), (7, 2, 12))])
    writer.stage(6, [part((6, 0, 20))])
    assert reader.changes()[ORDERS.table] == 5, "a transaction in progress does not count"
    writer.settle(6, Discarded())
    writer.publish([chunk(ITEMS, [inserted(30)])], Lsn(30), staged={7: StagedCommit(Lsn(30), 30, frozenset({8}))})
    with closing(log.reader()) as fresh:
        assert fresh.changes() == reader.changes() == {ORDERS.table: 7, ITEMS.table: 1}


def test_old_rows_of_rolled_back_subtransactions_do_not_count(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    subs = part((7, 0, 10), (8, 1, 11), (8, 1, 11), (7, 2, 12), (7, 2, 12))
    kinds = [Image.INSERTED, Image.BEFORE, Image.UPDATED, Image.BEFORE, Image.UPDATED]
    images = subs.images.set_column(2, subs.images.schema.field(2), pa.array([int(k) for k in kinds], pa.int8()))
    mask = sum(1 << kind for kind in set(kinds))
    writer.stage(7, [replace(subs, images=images, kinds=mask)])
    writer.publish([], Lsn(30), committed_at=30, staged={7: StagedCommit(Lsn(30), 30, frozenset({8}))})
    assert reader.changes()[ORDERS.table] == 2


def test_size_of_a_log_grows_with_its_changes(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20), committed_at=20)
    before = reader.size()
    writer.publish([chunk(ORDERS, [inserted(30, n, os.urandom(500).hex()) for n in range(100)])], Lsn(30))
    assert reader.size() >= before + 100_000


def test_a_discarded_transaction_leaves_no_trace(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.stage(7, [part((7, 0, 10))])
    writer.stage(6, [part((6, 0, 20))])
    writer.settle(7, Discarded())
    writer.publish([], Lsn(30), staged={7: StagedCommit(Lsn(30), 30)})
    assert ids(reader) == []
    writer.publish([], Lsn(40), staged={6: StagedCommit(Lsn(40), 40)})
    assert ids(reader) == [(40, 20)]


def test_prepared_transaction_survives_its_writer(log: ChangeLog, reader: ChangeLogReader) -> None:
    with closing(log.writer()) as first:
        first.define(ORDERS, Lsn(1))
        first.stage(7, [part((7, 0, 10), (8, 1, 11))])
        first.stage(6, [part((6, 0, 20))])
        first.settle(7, Prepared(frozenset({8})))
    with closing(log.writer()) as second:
        second.define(ORDERS)
        assert ids(reader) == []
        commits = {xid: StagedCommit(Lsn(30), 30) for xid in (6, 7)}
        second.publish([], Lsn(30), staged=commits)
    assert ids(reader) == [(30, 10)]


WIDER = TableSchema(
    ORDERS.table,
    COLUMNS.append(with_missing(pa.field("note", pa.string()), pa.array(["?"]))).append(pa.field("size", pa.int32())),
    ("id",),
)


def test_earlier_images_are_read_with_columns_added_later(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(20), Row(21, 0, Image.DELETED_KEY, (5, None))])], Lsn(21))
    version = writer.define(WIDER)
    assert reader.tables()[ORDERS.table].schema == ORDERS, "unchanged until a transaction uses the new version"
    writer.publish([chunk(WIDER, [Row(30, 0, Image.INSERTED, (1, "a", "b", 7))], version)], Lsn(30))
    logged = reader.tables()[ORDERS.table]
    assert logged.schema == WIDER
    assert [logged.schema_within(Lsn(a), Lsn(b)) for a, b in ((10, 29), (21, 30), (30, 90))] == [None, WIDER, None]
    rows = [
        tuple(row["row"].values())
        for batch in batches(reader, ORDERS, 5, 90, WIDER.columns)
        for row in batch.to_pylist()
    ]
    assert rows == [(20000, "x", "?", None), (5, None, None, None), (1, "a", "b", 7)]
    with pytest.raises(DefiniteError, match="changed its columns"):
        batches(reader, ORDERS, 5, 90, ORDERS.columns)


def test_table_can_start_a_new_generation(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    error = TableError("public.orders", 30, "failed", "fix it")
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(30), errors=[error])
    assert writer.define(WIDER, generation=1) == 2
    assert writer.define(WIDER, generation=1) == 2, "defining it again changes nothing"
    logged = reader.tables()
    orders = logged[ORDERS.table]
    assert (orders.valid, orders.error, orders.generation, orders.schema) == (30, None, 1, WIDER)
    assert (logged[ITEMS.table].valid, logged[ITEMS.table].generation) == (START, 0)


def test_generation_start_survives_retention(log: ChangeLog) -> None:
    with closing(log.writer()) as writer, closing(log.reader()) as reader:
        writer.define(ORDERS, START)
        writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
        assert reader.tables()[ORDERS.table].generation_start == Lsn.ZERO
        writer.define(ORDERS, None, 1)
        writer.publish([], Lsn(40))
        writer.retain(datetime.now(UTC))
        assert reader.tables()[ORDERS.table].generation_start == 20


def test_frontier_advances_without_changes(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20), committed_at=20)
    before = reader.frontiers()
    writer.publish([], Lsn(90))
    after = reader.frontiers()
    assert (after.durable, after.committed_at, after.published_at) == (90, before.committed_at, before.published_at)


def test_last_commit_survives_retention_and_reopening(log: ChangeLog) -> None:
    """Also after retention has removed its rows, and after the log is reopened."""
    last = Commit(Lsn(18), 731, 1_700_000_000_000_001)
    with closing(log.writer()) as writer:
        assert writer.frontiers().last is None
        writer.define(ORDERS)
        writer.publish([chunk(ORDERS, [inserted(18)])], Lsn(20), committed_at=1_700_000_000_000_002, last=last)
        writer.publish([], Lsn(30), passed=1_700_000_000_000_003)
        assert writer.retain(datetime.now(UTC)).valid > last.lsn
        assert writer.frontiers().last == last
    with closing(log.writer()) as writer, closing(log.reader()) as reader:
        assert writer.frontiers().last == reader.frontiers().last == last


def test_frontier_never_moves_back(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(50)])], Lsn(50))
    with pytest.raises(DefiniteError, match="back"):
        writer.publish([chunk(ORDERS, [inserted(40)])], Lsn(40), errors=[TableError("public.orders", 40, "x")])
    assert read(reader, ORDERS) == [inserted(50)]
    assert reader.frontiers().durable == writer.frontiers().durable == 50
    assert reader.tables()[ORDERS.table].error is None
    writer.publish([], Lsn(50))


def test_one_of_two_writers_is_rejected_and_leaves_no_trace(
    log: ChangeLog, writer: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    """Which of them depends on the log: a file has a lock, a broker fences the older writer."""
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
    try:
        second = log.writer()
    except DefiniteError as rejected:
        assert f"pid {os.getpid()}" in rejected.message
        writer.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
    else:
        with closing(second):
            with pytest.raises(DefiniteError, match="another writer"):
                writer.publish([chunk(ORDERS, [inserted(25)])], Lsn(25))
            second.define(ORDERS)
            second.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
    assert read(reader, ORDERS) == [inserted(20), inserted(30)]


def test_writers_can_write_one_after_another(log: ChangeLog) -> None:
    for lsn in (20, 30, 40):
        with closing(log.writer()) as writer:
            assert writer.define(ORDERS) == 1
            writer.publish([chunk(ORDERS, [inserted(lsn)])], Lsn(lsn))
    with closing(log.reader()) as reader:
        assert [row.lsn for row in read(reader, ORDERS)] == [20, 30, 40]


def test_errors_become_visible_with_their_publication(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    error = SchemaChangeError("public.orders", 30, "its columns changed", "Capture it again.")
    writer.publish([chunk(ITEMS, [inserted(30)])], Lsn(30), errors=[error])
    found = reader.tables()
    assert found[ITEMS.table].error is None
    kept = found[ORDERS.table].error
    assert kept is not None
    assert (type(kept), kept.args) == (type(error), error.args)


def test_first_error_of_a_table_is_kept(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([], Lsn(30), errors=[TableError("public.orders", 30, "first")])
    writer.publish([], Lsn(40), errors=[TableError("public.orders", 40, "second")])
    kept = reader.tables()[ORDERS.table].error
    assert kept is not None
    assert (kept.lsn, kept.message) == (30, "first")


def test_versions_of_a_schema(log: ChangeLog, reader: ChangeLogReader) -> None:
    wider = TableSchema(ORDERS.table, COLUMNS.append(pa.field("note", pa.string())), ("id",))
    with closing(log.writer()) as writer:
        assert [writer.define(s, START) for s in (ORDERS, ORDERS, wider, wider)] == [1, 1, 2, 2]
    with closing(log.writer()) as writer:
        assert writer.define(wider) == 2
    found = reader.tables()[TableName("public", "orders")]
    assert found.schemas == (ORDERS, wider)
    assert found.schema == wider


def test_wait_returns_at_once_when_the_frontier_has_advanced(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([], Lsn(20))
    assert reader.wait(Lsn(15), HOURS).durable == 20


def test_wait_times_out(reader: ChangeLogReader) -> None:
    began = time.monotonic()
    assert reader.wait(START, 0.1).durable == START
    assert time.monotonic() - began >= 0.1


def test_wait_returns_when_the_frontier_advances(log: ChangeLog, writer: ChangeLogWriter) -> None:
    found = [START]

    def wait() -> None:
        with closing(log.reader()) as mine:
            while found[-1] < 40:
                found.append(mine.wait(found[-1], HOURS).durable)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    for lsn in range(20, 41):
        writer.publish([], Lsn(lsn))
        until(partial(found.__contains__, lsn), f"the wait to end at {lsn}")
    waiting.join(PATIENCE)
    assert found == [START, *range(20, 41)]
