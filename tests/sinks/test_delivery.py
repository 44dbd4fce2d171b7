"""The loop of a sink on a real log: rows first, then every change once, whatever fails in between."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.changelog.chunks import ITEMS, ORDERS, Row, chunk, inserted
from tests.seeds import seed

from penstock.changelog.interface import ChangeLogWriter, Chunk, StagedCommit
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, HistoryExpiredError, TableError, TransientError
from penstock.model import Image, TableName, TableSchema, copied_images
from penstock.positions import Lsn
from penstock.sinks import delivery
from penstock.sinks.delivery import Delivery, ImageNeeds, Output, SinkTables, TableImages
from penstock.sinks.position import Copying, SinkPosition

START = Lsn(10)
NEEDS = ImageNeeds(whole_rows=True, deletes_for_truncate=True)
Written = tuple[str, int, int, int]
"""The table, position, kind and id of an image."""


class FakeTables(SinkTables):
    """Tables with the same rows at every position, in two batches."""

    def __init__(self, **rows: int) -> None:
        self.counts = rows
        self.found: dict[TableName, bool | DefiniteError] = {TableName("public", name): True for name in rows}
        self.bases: dict[TableName, Lsn] = dict.fromkeys(self.found, START)
        self.completed: list[Lsn] = []

    def states(self) -> Mapping[TableName, bool | DefiniteError]:
        return self.found

    def base(self, table: TableName, at: Lsn) -> tuple[int, Lsn] | None:
        return (3, self.bases[table]) if self.bases[table] <= at else None

    def rows(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        assert (version, base) == (3, self.bases[table])
        schema = ORDERS if table == ORDERS.table else ITEMS
        count = self.counts[table.name]
        rows = pa.RecordBatch.from_pylist([{"id": n, "name": "old"} for n in range(count)], schema.columns)
        parts = [rows.slice(0, count // 2), rows.slice(count // 2)]
        return schema, (copied_images(part, at) for part in parts if len(part))

    def current_rows(self, schema: TableSchema, at: Lsn) -> Iterator[pa.RecordBatch]:
        _, images = self.rows(schema.table, at, 3, self.bases[schema.table])
        return (pa.RecordBatch.from_struct_array(batch.column("row")) for batch in images)

    def complete(self, images: pa.RecordBatch, schema: TableSchema, after: Lsn) -> pa.RecordBatch:
        self.completed.append(after)
        return images


@dataclass
class FakeOutput(Output):
    """Transactions in memory, which survive the writer; `failures` decides when a write fails, before or after it."""

    transactions: list[tuple[list[Written], bytes]] = field(default_factory=list)
    failures: Iterator[str | None] = field(default_factory=lambda: iter(()))
    prepared: list[str] = field(default_factory=list)

    def open(self, seconds: float) -> bytes | None:
        return self.transactions[-1][1] if self.transactions else None

    def prepare(self, table: TableName) -> None:
        self.prepared.append(table.name)

    def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
        failure = next(self.failures, None)
        written = [row for each in tables for row in _rows(each)]
        if failure == "before":
            raise TransientError("broker is down")
        self.transactions.append((written, position))
        if failure == "after":
            raise TransientError("broker is down")
        return len(written)

    def close(self) -> None:
        pass

    def rows(self) -> list[Written]:
        """Return everything that was written, in order."""
        return [row for rows, _ in self.transactions for row in rows]

    def position(self) -> SinkPosition:
        return SinkPosition.from_bytes(self.transactions[-1][1])


def _rows(each: TableImages) -> Iterator[Written]:
    for row in each.images.to_pylist():
        yield each.schema.table.name, row["_lsn"], row["_image"], row["row"]["id"]


class Setup:
    """A log with two tables, and deliveries of them."""

    def __init__(self, folder: Path) -> None:
        self.log = SqliteLog(folder / "log" / "shop.db")
        self.log.create(START)
        self.writer: ChangeLogWriter = self.log.writer()
        for schema in (ORDERS, ITEMS):
            self.writer.define(schema, START)
        self.tables = FakeTables(orders=5, items=3)
        self.output = FakeOutput()
        self.at = START

    def publish(self, *rows: tuple[TableSchema, Row]) -> None:
        """Publish one transaction."""
        self.at = Lsn(rows[0][1].lsn)
        by_table = {schema.table: (schema, [r for s, r in rows if s is schema]) for schema, _ in rows}
        self.writer.publish([chunk(schema, found) for schema, found in by_table.values()], self.at)

    def delivery(self, *, snapshot: bool = True) -> Delivery:
        return Delivery("sink-out", self.log, self.tables, self.output, snapshot=snapshot, needs=NEEDS)

    def deliver(self, *, snapshot: bool = True) -> None:
        """Deliver everything that is in the log."""
        with closing(self.delivery(snapshot=snapshot)) as opened:
            opened.open(1.0, started=bool(self.output.transactions))
            while opened.step(0.0) or not self.is_done(opened):
                pass

    def is_done(self, opened: Delivery) -> bool:
        found = opened.position
        return found is not None and found.copying is None and found.tables.keys() == self.tables.states().keys()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.writer.close()


def changes(found: list[Written]) -> list[Written]:
    return [row for row in found if row[2] != Image.COPIED]


def test_rows_of_each_table_then_its_changes(setup: Setup) -> None:
    setup.publish((ORDERS, inserted(20)))
    setup.deliver()
    copied = [(name, 20, int(Image.COPIED), n) for name, count in (("items", 3), ("orders", 5)) for n in range(count)]
    assert setup.output.rows() == copied
    setup.publish((ITEMS, inserted(30, 0)), (ORDERS, inserted(30, 1)))
    setup.publish((ORDERS, inserted(40)))
    setup.deliver()
    inserts = [("items", 30, 6, 30_000), ("orders", 30, 6, 30_001), ("orders", 40, 6, 40_000)]
    assert sorted(changes(setup.output.rows())) == sorted(inserts)
    assert setup.output.position() == SinkPosition(Lsn(40), {ITEMS.table: 0, ORDERS.table: 0})
    assert setup.output.prepared == ["items", "orders"], "once each"


def test_changes_only(setup: Setup) -> None:
    setup.publish((ORDERS, inserted(20)))
    setup.deliver(snapshot=False)
    setup.publish((ORDERS, inserted(30)))
    setup.deliver(snapshot=False)
    assert setup.output.rows() == [("orders", 30, 6, 30_000)]


def test_a_transaction_is_never_split(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_WINDOW_BYTES", 1)
    monkeypatch.setattr(delivery, "_BATCH_ROWS", 2)
    setup.deliver()
    both = [(s, inserted(30, n)) for n, s in enumerate([ORDERS, ITEMS] * 5)]
    setup.publish(*both)
    setup.publish((ORDERS, inserted(40)))
    setup.deliver()
    parts = [{row[1] for row in rows} for rows, _ in setup.output.transactions if changes(rows)]
    assert parts == [{30}, {40}]


def test_batches_do_not_end_within_a_change(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_BATCH_ROWS", 3)
    ends: list[int] = []

    class Recording(FakeOutput):
        def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
            found = list(tables)
            ends.extend(each.images.column("_image")[-1].as_py() for each in found)
            return super().write(found, position, seconds)

    setup.output = Recording()
    setup.deliver(snapshot=False)
    kinds = [Image.BEFORE, Image.UPDATED] * 6
    images = [Row(7, number // 2, kind, (1, "x")) for number, kind in enumerate(kinds)]
    for first in (0, 3, 7, 10):  # a part that begins within a change, twice
        last = {0: 3, 3: 7, 7: 10, 10: 12}[first]
        setup.writer.stage(7, [staged(ORDERS, images[first:last])])
    setup.writer.publish([], Lsn(30), committed_at=30, staged={7: StagedCommit(Lsn(30), 30)})
    setup.deliver(snapshot=False)
    assert len(ends) > 1
    assert set(ends) == {Image.UPDATED}
    assert [row[2] for row in setup.output.rows()] == kinds


def staged(schema: TableSchema, rows: list[Row]) -> Chunk:
    """Part of a staged transaction; the position of each row is its transaction id."""
    part = chunk(schema, rows)
    columns = [pa.array([-1] * len(part.transactions)), part.transactions.column(0), part.transactions.column(2)]
    return replace(part, transactions=pa.RecordBatch.from_arrays(columns, schema=part.transactions.schema))


def test_crashes_repeat_nothing_and_skip_nothing(setup: Setup) -> None:
    dice = random.Random(seed())
    setup.output.failures = (dice.choice(["before", "after", None, None]) for _ in range(200))
    published: list[Written] = []
    lsn, restarts = 20, 0
    while lsn < 600:
        with closing(setup.delivery()) as opened:
            try:
                opened.open(1.0, started=bool(setup.output.transactions))
                for _ in range(dice.randint(1, 6)):
                    rows = [(dice.choice([ORDERS, ITEMS]), inserted(lsn, n)) for n in range(dice.randint(1, 4))]
                    setup.publish(*rows)
                    published += [(schema.table.name, lsn, 6, lsn * 1000 + row.ordinal) for schema, row in rows]
                    lsn += 10
                    opened.step(0.0)
            except TransientError:
                restarts += 1
    setup.output.failures = iter(())
    setup.deliver()
    assert restarts > 10
    first = int(SinkPosition.from_bytes(setup.output.transactions[0][1]).position)
    found = setup.output.rows()
    copied = [(name, first, 7, n) for name, count in setup.tables.counts.items() for n in range(count)]
    assert sorted(row for row in found if row[2] == Image.COPIED) == sorted(copied)
    assert sorted(changes(found)) == sorted(row for row in published if row[1] > first)
    for name in ("orders", "items"):
        order = [row[1] for row in changes(found) if row[0] == name]
        assert order == sorted(order)


def test_copy_resumes_in_the_middle_and_retains_its_base(setup: Setup) -> None:
    setup.publish((ORDERS, inserted(20)))
    setup.output.failures = iter([None, None, None, "after"])
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=False)
        assert opened.step(0.0)
        assert opened.step(0.0)
        with pytest.raises(TransientError):
            opened.step(0.0)
    assert setup.output.position().copying == Copying(ITEMS.table, 3, START, 3)
    with closing(setup.log.reader()) as reader:
        assert [(lease.reader, lease.at) for lease in reader.leases()] == [("sink-out", START)]
    setup.deliver()
    assert [row[3] for row in setup.output.rows() if row[0] == "items"] == [0, 1, 2]


def test_base_is_retained_after_a_crash_before_the_first_row(setup: Setup) -> None:
    setup.publish((ORDERS, inserted(20)))
    setup.output.failures = iter([None, "after"])
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=False)
        assert opened.step(0.0)
        with pytest.raises(TransientError):
            opened.step(0.0)
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=True)
        with closing(setup.log.reader()) as reader:
            assert [lease.at for lease in reader.leases()] == [START]
    setup.deliver()
    assert len(setup.output.rows()) == 8


def test_start_waits_for_snapshots(setup: Setup) -> None:
    setup.tables.found[ITEMS.table] = False
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=False)
        assert not opened.step(0.0)
        assert opened.position is None
        setup.tables.found[ITEMS.table] = True
        assert opened.step(0.0)
        assert opened.position == SinkPosition(START)


def test_table_that_is_added_later_joins_at_its_base(setup: Setup) -> None:
    del setup.tables.found[ITEMS.table]
    setup.deliver()
    setup.tables.found[ITEMS.table] = True
    setup.tables.bases[ITEMS.table] = Lsn(35)
    setup.publish((ORDERS, inserted(30)))
    setup.publish((ITEMS, inserted(40)), (ORDERS, inserted(40, 1)))
    setup.deliver()
    setup.publish((ITEMS, inserted(50)))
    setup.deliver()
    assert [row[1:3] for row in setup.output.rows() if row[0] == "items"] == [(40, 7)] * 3 + [(50, 6)]
    assert [row[1] for row in changes(setup.output.rows()) if row[0] == "orders"] == [30, 40]


def test_dropped_table_leaves(setup: Setup) -> None:
    setup.deliver()
    del setup.tables.found[ITEMS.table]
    setup.publish((ITEMS, inserted(20)), (ORDERS, inserted(20, 1)))
    setup.deliver()
    assert changes(setup.output.rows()) == [("orders", 20, 6, 20_001)]
    assert setup.output.position().tables == {ORDERS.table: 0}


def test_error_of_a_table_stops_after_everything_before_it(setup: Setup) -> None:
    setup.deliver()
    setup.publish((ORDERS, inserted(20)))
    error = TableError("public.items", 30, "it was rewritten", "Take a new snapshot.")
    setup.writer.publish([chunk(ORDERS, [inserted(40)])], Lsn(40), errors=[error])
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=True)
        assert opened.step(0.0)
        with pytest.raises(TableError, match="rewritten"):
            while True:
                opened.step(0.0)
    assert changes(setup.output.rows()) == [("orders", 20, 6, 20_000)]


def test_table_that_was_captured_again_is_an_error(setup: Setup) -> None:
    setup.deliver()
    setup.writer.define(ORDERS, None, 1)
    setup.publish((ORDERS, inserted(20)))
    with pytest.raises(DefiniteError, match=r"public\.orders was captured again"):
        setup.deliver()
    assert not changes(setup.output.rows())


def test_lost_position_is_an_error_and_not_a_new_start(setup: Setup) -> None:
    setup.deliver()
    setup.output.transactions.clear()
    with closing(setup.delivery()) as opened, pytest.raises(DefiniteError, match="positions topic"):
        opened.open(1.0, started=True)


def test_failed_table_without_rows_is_an_error(setup: Setup) -> None:
    setup.tables.found[ITEMS.table] = DefiniteError("public.items has failed", "Retry it.")
    with pytest.raises(DefiniteError, match=r"public\.items has failed"):
        setup.deliver()


def test_history_is_retained_for_the_written_position(setup: Setup) -> None:
    setup.deliver()
    setup.publish((ORDERS, inserted(20)))
    setup.deliver()
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=True)
    with closing(setup.log.reader()) as reader:
        assert [lease.at for lease in reader.leases()] == [Lsn(20)]
        with pytest.raises(HistoryExpiredError):
            reader.extent(ORDERS.table, Lsn(5), Lsn(20))


def test_omitted_values_are_filled_in_from_the_start_of_the_window(setup: Setup) -> None:
    setup.deliver()
    setup.publish((ORDERS, Row(20, 0, Image.UPDATED, (1, None), (1,))))
    setup.deliver()
    assert setup.tables.completed == [START]


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"{}", b'{"version": 1, "position": "x", "tables": {}, "copying": null}', b"\xff"]
)
def test_garbage_in_the_positions_topic_is_an_error(message: bytes) -> None:
    with pytest.raises(DefiniteError, match="positions topic"):
        SinkPosition.from_bytes(message)


def test_newer_position_is_an_error() -> None:
    with pytest.raises(DefiniteError, match="version 9"):
        SinkPosition.from_bytes(b'{"version": 9}')


def test_positions_survive_the_round_trip() -> None:
    table = TableName("public", 'a.b "c"')
    position = SinkPosition(Lsn(77), {ORDERS.table: 2, table: 0}, Copying(table, 4, Lsn(70), 12))
    assert SinkPosition.from_bytes(position.to_bytes()) == position


def test_truncate_deletes_the_rows_that_exist(setup: Setup) -> None:
    setup.deliver()
    gone = Row(20, 0, Image.DELETED_KEY, (1, None))
    setup.publish((ORDERS, gone), (ORDERS, Row(20, 1, Image.INSERTED, (7, "x"))))
    setup.publish((ORDERS, Row(30, 0, Image.TRUNCATE, None)), (ORDERS, Row(30, 1, Image.INSERTED, (0, "x"))))
    setup.publish((ORDERS, Row(40, 0, Image.TRUNCATE, None)))
    setup.deliver()
    found = [row[1:] for row in changes(setup.output.rows())]
    deleted = int(Image.DELETED)
    assert found[:2] == [(20, 4, 1), (20, 6, 7)]
    assert sorted(found[2:7]) == [(30, deleted, n) for n in (0, 2, 3, 4, 7)], "all but the row that was deleted before"
    assert found[7:] == [(30, 6, 0), (40, deleted, 0)]


def test_changes_only_begin_where_history_was_retained(setup: Setup) -> None:
    with closing(setup.log.reader()) as reader:
        reader.set_lease("sink-out", START)  # when the sink was created
    setup.publish((ORDERS, inserted(20)))
    setup.deliver(snapshot=False)
    assert setup.output.rows() == [("orders", 20, 6, 20_000)]


def test_idle_sink_retains_no_history(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease follows the position also if the last changes come in quick succession; see ``retain limit``."""
    with closing(setup.delivery(snapshot=False)) as opened, closing(setup.log.reader()) as reader:
        opened.open(1.0, started=False)
        while opened.step(0.0) or not setup.is_done(opened):
            pass
        monkeypatch.setattr(delivery, "_LEASE_SECONDS", 3600.0)
        setup.publish((ORDERS, inserted(20, 1)))
        assert opened.step(0.0)
        assert [lease.at for lease in reader.leases()] == [START]
        monkeypatch.setattr(delivery, "_LEASE_SECONDS", 0.0)
        assert not opened.step(0.0)
        assert [lease.at for lease in reader.leases()] == [Lsn(20)]


def test_changes_only_include_those_before_the_initial_snapshot(setup: Setup) -> None:
    """The table is copied later than the sink is created; its changes are in the log from the start."""
    setup.tables.bases[ITEMS.table] = Lsn(35)
    with closing(setup.log.reader()) as reader:
        reader.set_lease("sink-out", START)
    setup.publish((ITEMS, inserted(30)))
    setup.publish((ITEMS, inserted(40)))
    setup.deliver(snapshot=False)
    assert setup.output.rows() == [("items", 30, 6, 30_000), ("items", 40, 6, 40_000)]


def test_changes_only_of_a_table_that_is_added_later(setup: Setup) -> None:
    setup.deliver(snapshot=False)
    notes = TableSchema(TableName("public", "notes"), ORDERS.columns, ("id",))
    setup.publish((ORDERS, inserted(20)))
    setup.writer.define(notes, None, 1)  # its history begins at 20
    setup.publish((notes, inserted(30)))
    setup.tables.found[notes.table] = False  # it is being copied
    setup.tables.bases[notes.table] = Lsn(100)
    setup.publish((notes, inserted(40)), (ORDERS, inserted(40, 1)))
    setup.deliver(snapshot=False)
    assert [row[1] for row in setup.output.rows() if row[0] == "notes"] == [30, 40]
    assert [row[1] for row in setup.output.rows() if row[0] == "orders"] == [20, 40]


def test_base_of_an_earlier_generation_is_not_copied(setup: Setup) -> None:
    del setup.tables.found[ITEMS.table]
    setup.deliver()
    setup.publish((ORDERS, inserted(20)))
    setup.writer.define(ITEMS, None, 1)
    setup.publish((ITEMS, inserted(30)))
    setup.tables.found[ITEMS.table] = True  # its base at START belongs to the history before
    with closing(setup.delivery()) as opened:
        opened.open(1.0, started=True)
        for _ in range(5):
            opened.step(0.0)
        assert ITEMS.table not in opened.position.tables  # type: ignore[union-attr]
        setup.tables.bases[ITEMS.table] = Lsn(25)
        for _ in range(5):
            opened.step(0.0)
    assert [row[2] for row in setup.output.rows() if row[0] == "items"] == [7, 7, 7]
