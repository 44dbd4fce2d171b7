"""`home.tail`: what it begins with, what it holds while it runs, how it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted

import penstock
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLogReader, ChangeLogWriter, Chunk
from penstock.changelog.sqlite.log import SqliteLog
from penstock.engine import transaction_tail as module
from penstock.errors import DefiniteError, HistoryExpiredError, TableError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)
AT = 4_000_000_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> penstock.Home:
    """A home with a source whose log is written by hand."""
    catalog = Catalog(catalog_path(tmp_path))
    tables = [TableRecord("shop", name, name.name, TableState.LIVE) for name in (ORDERS.table, ITEMS.table)]
    broken = TableRecord("shop", TableName("public", "notes"), "notes", TableState.FAILED, "it has no key", "Add one.")
    catalog.add_sources([(SourceRecord("shop", "POSTGRES", "{}", "{}", SourceState.READY), [*tables, broken])])
    catalog.log("shop").create(Lsn(10))
    return penstock.open(tmp_path)


@pytest.fixture
def writer(home: penstock.Home) -> Iterator[ChangeLogWriter]:
    with closing(home._catalog.log("shop").writer()) as opened:
        opened.define(ORDERS, Lsn(10))
        opened.define(ITEMS, Lsn(10))
        yield opened


@pytest.fixture
def reader(home: penstock.Home) -> Iterator[ChangeLogReader]:
    with closing(home._catalog.log("shop").reader()) as opened:
        yield opened


def publish(writer: ChangeLogWriter, lsn: int) -> None:
    both = [chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])]
    writer.publish(both, Lsn(lsn), committed_at=AT + lsn)


def idle(looks: int = 3) -> Callable[[], bool]:
    """Stop when there was nothing for some looks."""
    left = iter(range(looks))
    return lambda: next(left, None) is None


def positions(found: Iterator[penstock.Transaction]) -> list[int]:
    return [int(transaction.lsn) for transaction in found]


def test_where_it_begins(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    assert positions(home.tail("shop", start="earliest", stop=idle(9))) == [20, 30, 40]
    assert positions(home.tail("shop", start="0/14", stop=idle(9))) == [30, 40]
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9))) == [40]
    assert positions(home.tail("shop", stop=idle())) == []
    latest = home.tail("shop")
    publish(writer, 50)
    assert next(latest).lsn == 50, "it is meant from the call on, not from the first look"
    latest.close()


def test_some_tables(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.publish([chunk(ITEMS, [inserted(30)])], Lsn(30))
    for names in (["public.orders"], ["orders"]):
        (found,) = home.tail("shop", names, start="earliest", stop=idle())
        assert list(found.tables) == ["public.orders"]


def test_what_is_not_there_is_refused(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for arguments, said, hint in (
        (("bank",), "no source bank", "Known are: shop"),
        (("shop", ["public.order"]), "no table public.order", "public.orders"),
        (("shop", [], "yesterday"), "'yesterday' is not a position", "earliest"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            home.tail(*arguments)
        assert hint in caught.value.hint
    with pytest.raises(DefiniteError, match="notes is not captured: it has no key") as failed:
        home.tail("shop", ["public.notes"])
    assert failed.value.hint == "Add one."


def test_what_is_gone_is_refused(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    writer.retain(datetime.fromtimestamp(AT / 1e6 + 0.00003, UTC))
    assert positions(home.tail("shop", start="earliest", stop=idle())) == [40]
    with pytest.raises(HistoryExpiredError):
        next(home.tail("shop", start=Lsn(20)))


def test_it_holds_history_while_it_runs(
    home: penstock.Home, writer: ChangeLogWriter, reader: ChangeLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.05)
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    found = home.tail("shop", start="earliest")
    assert next(found).lsn == 20
    (first,) = reader.pins()
    assert first.reader.startswith("tail-")
    assert first.expires is not None
    # A caller may take longer over a transaction than the lease lasts: it is renewed meanwhile.
    until(lambda: reader.pins()[0] != first, "the lease to be renewed")
    (pin,) = reader.pins()
    assert pin.expires is not None
    assert (pin.reader, pin.at, pin.expires > first.expires) == (first.reader, first.at, True)
    writer.retain(FOREVER)
    assert next(found).lsn == 30
    assert next(found).lsn == 40
    found.close()
    assert reader.pins() == []
    assert writer.retain(FOREVER).valid == 40


def test_an_error_of_a_table_comes_after_all_before_it(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.publish([chunk(ITEMS, [inserted(30)])], Lsn(30), errors=[TableError("public.orders", 30, "over", "mend it")])
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    for names in ([], ["public.orders"]):
        found = home.tail("shop", names, start="earliest")
        assert next(found).lsn == 20
        with pytest.raises(TableError, match="over"):
            next(found)
    assert positions(home.tail("shop", ["public.items"], start="earliest", stop=idle(9))) == [20, 30, 40]
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9))) == [40], "it had failed before, and is left out"
    with pytest.raises(TableError):
        next(home.tail("shop", ["public.orders"], start=Lsn(30)))


def fail(writer: ChangeLogWriter, lsn: int, *tables: str, chunks: Sequence[Chunk] = ()) -> None:
    errors = [TableError(table, lsn, f"{table} is over", "mend it") for table in tables]
    writer.publish(chunks, Lsn(lsn), errors=errors)


def shown(transaction: penstock.Transaction) -> tuple[int, list[str]]:
    return int(transaction.lsn), [name.removeprefix("public.") for name in transaction.tables]


def test_a_table_that_fails_is_told_once_and_the_others_go_on(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders", chunks=[chunk(ITEMS, [inserted(30)])])
    told: list[TableError | tuple[int, list[str]]] = []
    found = home.tail("shop", start="earliest", stop=idle(12), failed=told.append)
    told.extend(shown(transaction) for transaction in itertools.islice(found, 2))
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    told.extend(shown(transaction) for transaction in found)
    (error,) = [each for each in told if isinstance(each, TableError)]
    assert (error.table, error.lsn, error.message, error.hint) == (
        *("public.orders", 30),
        *("public.orders is over", "mend it"),
    )
    assert [each for each in told if each is not error] == [
        (20, ["items", "orders"]),
        (30, ["items"]),
        (40, ["items"]),
    ]


def test_the_error_of_the_last_table_ends_it(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders")
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    fail(writer, 50, "public.items")
    for start, seen in (("earliest", [20, 40]), (Lsn(20), [40]), (Lsn(50), [])):
        told: list[TableError] = []
        taken: list[int] = []
        with pytest.raises(TableError, match="is over") as caught:
            for transaction in home.tail("shop", start=start, failed=told.append):
                taken.append(int(transaction.lsn))
        assert taken == seen
        assert {error.table for error in told} | {caught.value.table} == {"public.items", "public.orders"}
        assert len(told) == 1


def test_all_tables_fail_at_once(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders", "public.items")
    told: list[TableError] = []
    with pytest.raises(TableError, match="orders is over"):
        positions(home.tail("shop", start="earliest", failed=told.append))
    assert [error.table for error in told] == ["public.items"]


def test_a_shard_of_which_no_table_is_left_leaves_the_others_alone(tmp_path: Path) -> None:
    logs = {shard: SqliteLog(tmp_path / f"{shard}.db") for shard in ("one", "two")}
    for log in logs.values():
        log.create(Lsn(10))
    tailed = [module.Tailed(log, frozenset(), Lsn(10), shard) for shard, log in logs.items()]
    told: list[TableError] = []
    found = module.follow(tailed, lambda: False, told.append)
    with closing(logs["one"].writer()) as one, closing(logs["two"].writer()) as two:
        for writer in (one, two):
            writer.define(ORDERS, Lsn(10))
        fail(one, 20, "public.orders")
        two.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
        assert next(found).shard == "two"
        assert [error.message for error in told] == ["on shard one, public.orders is over"]
        fail(two, 40, "public.orders")
        with pytest.raises(TableError, match=r"on shard two, public\.orders is over"):
            next(found)
    assert len(told) == 1


def test_a_table_that_is_named_ends_it_also_where_errors_are_listened_to(
    home: penstock.Home, writer: ChangeLogWriter
) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders")
    told: list[TableError] = []
    found = home.tail("shop", ["public.orders", "public.items"], start="earliest", failed=told.append)
    assert next(found).lsn == 20
    with pytest.raises(TableError, match="orders is over"):
        next(found)
    assert told == []


def test_a_table_that_had_failed_before_is_told_too(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders")
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    told: list[TableError] = []
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9), failed=told.append)) == [40]
    assert [error.table for error in told] == ["public.orders"]


def test_a_table_that_is_captured_anew_is_followed_again(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    fail(writer, 30, "public.orders")
    told: list[TableError] = []
    found = home.tail("shop", start="earliest", stop=idle(15), failed=told.append)
    assert shown(next(found)) == (20, ["items", "orders"])
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    assert shown(next(found)) == (40, ["items"])
    writer.publish([chunk(ITEMS, [inserted(50)])], Lsn(50))
    writer.define(ORDERS, generation=1)
    publish(writer, 60)
    assert [shown(transaction) for transaction in found] == [(50, ["items"]), (60, ["items", "orders"])]
    assert [error.message for error in told] == ["public.orders is over"]


def test_changes_that_are_gone_with_a_table_that_was_captured_anew_are_told(
    home: penstock.Home, writer: ChangeLogWriter
) -> None:
    """It did not fail, or nobody looked meanwhile."""
    for lsn in (20, 30):
        publish(writer, lsn)
    told: list[TableError] = []
    found = home.tail("shop", start=Lsn(10), stop=idle(15), failed=told.append)
    assert shown(next(found)) == (20, ["items", "orders"])
    assert shown(next(found)) == (30, ["items", "orders"])
    publish(writer, 40)
    writer.define(ORDERS, generation=1)
    publish(writer, 50)
    assert [shown(transaction) for transaction in found] == [(40, ["items"]), (50, ["items", "orders"])]
    (error,) = told
    assert "public.orders was captured anew: its changes after 0/1E and up to 0/28 are gone" in error.message
    assert error.hint


def test_a_table_that_is_added_is_followed_from_its_beginning(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    found = home.tail("shop", start="earliest", stop=idle(15))
    assert shown(next(found)) == (20, ["items", "orders"])
    publish(writer, 30)
    notes = replace(ORDERS, table=TableName("public", "others"))
    writer.define(notes, generation=1)
    writer.publish([chunk(ORDERS, [inserted(40)]), chunk(notes, [inserted(40)])], Lsn(40))
    assert [shown(transaction) for transaction in found] == [(30, ["items", "orders"]), (40, ["orders", "others"])]


def test_earliest_is_where_all_tables_are_whole(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.define(ORDERS, generation=1)
    publish(writer, 30)
    assert positions(home.tail("shop", start="earliest", stop=idle(9))) == [30]
    assert positions(home.tail("shop", ["public.items"], start="earliest", stop=idle(9))) == [20, 30]


def test_a_publication_ends_its_wait(
    home: penstock.Home, writer: ChangeLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for hours: each transaction is seen because it was published, not because a wait ended."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 100 * PATIENCE)
    seen: list[int] = []
    found = home.tail("shop", stop=lambda: seen[-1:] == [69])

    def follow() -> None:
        for transaction in found:
            seen.append(int(transaction.lsn))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for lsn in range(20, 70):
        publish(writer, lsn)
        until(partial(seen.__contains__, lsn), f"the transaction at {lsn}")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert seen == list(range(20, 70))
