"""Complete transactions across several tables, from any log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.changelog.chunks import COLUMNS, ITEMS, ORDERS, Row, chunk, inserted
from tests.changelog.conftest import START
from tests.changelog.test_interface import WIDER, part

from penstock.changelog import transactions as module
from penstock.changelog import windows
from penstock.changelog.interface import ChangeLog, ChangeLogReader, ChangeLogWriter, Extent, StagedCommit
from penstock.changelog.transactions import Transaction, transactions
from penstock.errors import HistoryExpiredError
from penstock.model import Image, TableName
from penstock.positions import Lsn

BOTH = (ORDERS.table, ITEMS.table)


def summary(transaction: Transaction) -> tuple[int, dict[str, list[tuple[str, int]]]]:
    """Position, and for each table the operations with their ordinals."""
    tables = {
        name: list(zip(table["_op"].to_pylist(), table["_ordinal"].to_pylist(), strict=True))
        for name, table in transaction.tables.items()
    }
    return int(transaction.lsn), tables


@pytest.fixture
def interleaved(writer: ChangeLogWriter) -> ChangeLogWriter:
    """Transactions on one table, on both, on one in several chunks, and one partly staged."""
    writer.publish([chunk(ORDERS, [inserted(20), inserted(30, 0), inserted(30, 2)])], Lsn(30))
    writer.publish([chunk(ITEMS, [inserted(40, 1)]), chunk(ORDERS, [inserted(40, 0)])], Lsn(40))
    writer.stage(7, [part((7, 0, 1)), chunk(ITEMS, [inserted(-1, 1)])])
    writer.stage(7, [part((7, 2, 2))])
    rest = [chunk(ITEMS, [inserted(50, 3), inserted(60, 0)])]
    writer.publish(rest, Lsn(60), staged={7: StagedCommit(Lsn(50), 50)})
    return writer


WHOLE = [
    (20, {"public.orders": [("insert", 0)]}),
    (30, {"public.orders": [("insert", 0), ("insert", 2)]}),
    (40, {"public.items": [("insert", 1)], "public.orders": [("insert", 0)]}),
    (50, {"public.items": [("insert", 1), ("insert", 3)], "public.orders": [("insert", 0), ("insert", 2)]}),
    (60, {"public.items": [("insert", 0)]}),
]


@pytest.mark.parametrize("window", [1, 1 << 30])
@pytest.mark.parametrize("step", [1, 7, 1 << 30])
def test_transactions_are_whole_and_in_order(
    interleaved: ChangeLogWriter, reader: ChangeLogReader, monkeypatch: pytest.MonkeyPatch, window: int, step: int
) -> None:
    """Wherever the range is split while it is read."""
    monkeypatch.setattr(module, "_WINDOW_BYTES", window)
    monkeypatch.setattr(windows, "_WAL_STEP", step)
    assert [summary(each) for each in transactions(reader, BOTH, START, Lsn(60))] == WHOLE
    assert [summary(each) for each in transactions(reader, BOTH, Lsn(30), Lsn(50))] == WHOLE[2:4]
    assert list(transactions(reader, BOTH, Lsn(60), Lsn(60))) == []


def test_transactions_of_selected_tables(interleaved: ChangeLogWriter, reader: ChangeLogReader) -> None:
    found = [summary(each) for each in transactions(reader, [ITEMS.table], START, Lsn(60))]
    assert found == [(lsn, {"public.items": t["public.items"]}) for lsn, t in WHOLE if "public.items" in t]
    assert list(transactions(reader, [TableName("public", "unknown")], START, Lsn(60))) == []
    assert list(transactions(reader, [], START, Lsn(60))) == []


def test_transaction_metadata_and_rows(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    old, new = Row(20, 0, Image.BEFORE, (1, "old")), Row(20, 0, Image.UPDATED, (1, "new"))
    writer.publish([chunk(ORDERS, [old, new])], Lsn(20))
    (found,) = transactions(reader, BOTH, START, Lsn(20))
    assert (found.lsn, found.xid) == (20, 21)
    assert found.committed_at == datetime(1970, 1, 1, 0, 0, 0, 20, tzinfo=UTC)
    (row,) = found.tables["public.orders"].to_pylist()
    assert (row["before"], row["after"]) == ({"id": 1, "name": "old"}, {"id": 1, "name": "new"})


def test_transaction_with_two_schema_versions_has_the_later_columns(
    writer: ChangeLogWriter, reader: ChangeLogReader
) -> None:
    version = writer.define(WIDER)
    writer.publish(
        [
            chunk(ORDERS, [inserted(20), inserted(30, 0)]),
            chunk(
                WIDER,
                [Row(30, 1, Image.INSERTED, (1, "a", "b", 7)), Row(40, 0, Image.INSERTED, (2, "a", "b", 7))],
                version,
            ),
        ],
        Lsn(40),
    )
    found = {int(each.lsn): each.tables["public.orders"] for each in transactions(reader, BOTH, START, Lsn(40))}
    names = {lsn: [field.name for field in table.schema.field("after").type] for lsn, table in found.items()}
    assert names == {20: COLUMNS.names, 30: WIDER.columns.names, 40: WIDER.columns.names}
    assert [row["note"] for row in found[30]["after"].to_pylist()] == ["?", "b"]


def test_new_generation_is_not_read_from_before_its_start(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    writer.publish([chunk(ORDERS, [inserted(20)]), chunk(ITEMS, [inserted(20)])], Lsn(20))
    writer.define(ORDERS, generation=1)
    writer.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
    with pytest.raises(HistoryExpiredError):
        list(transactions(reader, BOTH, START, Lsn(30)))
    assert [summary(each)[0] for each in transactions(reader, BOTH, Lsn(20), Lsn(30))] == [30]


def test_only_a_window_is_read_at_a_time(
    log: ChangeLog, writer: ChangeLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lsn in range(20, 60):
        writer.publish([chunk(table, [inserted(lsn, 0, "x" * 1000)]) for table in (ORDERS, ITEMS)], Lsn(lsn))
    monkeypatch.setattr(module, "_WINDOW_BYTES", 10_000)
    with closing(log.reader()) as reader:
        rows_read: list[int] = []
        read = reader.read

        def counted(extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
            rows_read.append(extent.rows)
            return read(extent, columns)

        monkeypatch.setattr(reader, "read", counted)
        found = transactions(reader, BOTH, START, Lsn(59))
        assert summary(next(found))[0] == 20
        assert sum(rows_read) < 20
        assert len(list(found)) == 39
        assert sum(rows_read) == 80


def test_a_gap_in_positions_is_crossed_in_few_steps(writer: ChangeLogWriter, reader: ChangeLogReader) -> None:
    far = 1 << 45
    writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
    rows = [replace(inserted(20), lsn=far + n) for n in range(3)]
    writer.publish([chunk(ORDERS, rows)], Lsn(far + 2))
    found = transactions(reader, [ORDERS.table], START, Lsn(far + 2))
    assert [int(each.lsn) for each in found] == [20, far, far + 1, far + 2]
