"""`home.tail`: where it starts, which history it leases, how it ends."""

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

FAR_FUTURE = datetime(2200, 1, 1, tzinfo=UTC)
AT = 4_000_000_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> penstock.Home:
    """A home with a source whose log the test writes."""
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


def idle(polls: int = 3) -> Callable[[], bool]:
    """Return a `stop` function that ends the tail after some idle polls."""
    left = iter(range(polls))
    return lambda: next(left, None) is None


def positions(found: Iterator[penstock.Transaction]) -> list[int]:
    return [int(transaction.lsn) for transaction in found]


def test_start_positions(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    assert positions(home.tail("shop", start="earliest", stop=idle(9))) == [20, 30, 40]
    assert positions(home.tail("shop", start="0/14", stop=idle(9))) == [30, 40]
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9))) == [40]
    assert positions(home.tail("shop", stop=idle())) == []
    latest = home.tail("shop")
    publish(writer, 50)
    assert next(latest).lsn == 50, "`latest` is the position at the call, not at the first poll"
    latest.close()


def test_selected_tables(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.publish([chunk(ITEMS, [inserted(30)])], Lsn(30))
    for names in (["public.orders"], ["orders"]):
        (found,) = home.tail("shop", names, start="earliest", stop=idle())
        assert list(found.tables) == ["public.orders"]


def test_unknown_sources_and_tables_are_rejected(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for arguments, message, hint in (
        (("bank",), "source bank does not exist", "Sources of this home: shop"),
        (("shop", ["public.order"]), "no table public.order", "public.orders"),
        (("shop", [], "yesterday"), "invalid start position 'yesterday'", "earliest"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            home.tail(*arguments)
        assert hint in caught.value.hint
    with pytest.raises(DefiniteError, match="notes is not captured: it has no key") as failed:
        home.tail("shop", ["public.notes"])
    assert failed.value.hint == "Add one."


def test_expired_start_position_is_rejected(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    writer.retain(datetime.fromtimestamp(AT / 1e6 + 0.00003, UTC))
    assert positions(home.tail("shop", start="earliest", stop=idle())) == [40]
    with pytest.raises(HistoryExpiredError):
        next(home.tail("shop", start=Lsn(20)))


def test_history_is_leased_while_the_tail_runs(
    home: penstock.Home, writer: ChangeLogWriter, reader: ChangeLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.05)
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    found = home.tail("shop", start="earliest")
    assert next(found).lsn == 20
    (first,) = reader.leases()
    assert first.reader.startswith("tail-")
    assert first.expires is not None
    # The caller may process a transaction for longer than the lease lasts: the lease is renewed meanwhile.
    until(lambda: reader.leases()[0] != first, "the lease to be renewed")
    (lease,) = reader.leases()
    assert lease.expires is not None
    assert (lease.reader, lease.at, lease.expires > first.expires) == (first.reader, first.at, True)
    writer.retain(FAR_FUTURE)
    assert next(found).lsn == 30
    assert next(found).lsn == 40
    found.close()
    assert reader.leases() == []
    assert writer.retain(FAR_FUTURE).valid == 40


def test_table_error_comes_after_all_earlier_transactions(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.publish(
        [chunk(ITEMS, [inserted(30)])], Lsn(30), errors=[TableError("public.orders", 30, "broken", "fix it")]
    )
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    for names in ([], ["public.orders"]):
        found = home.tail("shop", names, start="earliest")
        assert next(found).lsn == 20
        with pytest.raises(TableError, match="broken"):
            next(found)
    assert positions(home.tail("shop", ["public.items"], start="earliest", stop=idle(9))) == [20, 30, 40]
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9))) == [40], "orders failed before, and is skipped"
    with pytest.raises(TableError):
        next(home.tail("shop", ["public.orders"], start=Lsn(30)))


def publish_errors(writer: ChangeLogWriter, lsn: int, *tables: str, chunks: Sequence[Chunk] = ()) -> None:
    failures = [TableError(table, lsn, f"{table} has failed", "fix it") for table in tables]
    writer.publish(chunks, Lsn(lsn), errors=failures)


def summary(transaction: penstock.Transaction) -> tuple[int, list[str]]:
    return int(transaction.lsn), [name.removeprefix("public.") for name in transaction.tables]


def test_failed_table_is_reported_once_and_the_others_continue(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders", chunks=[chunk(ITEMS, [inserted(30)])])
    events: list[TableError | tuple[int, list[str]]] = []
    found = home.tail("shop", start="earliest", stop=idle(12), failed=events.append)
    events.extend(summary(transaction) for transaction in itertools.islice(found, 2))
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    events.extend(summary(transaction) for transaction in found)
    (error,) = [each for each in events if isinstance(each, TableError)]
    assert (error.table, error.lsn, error.message, error.hint) == (
        *("public.orders", 30),
        *("public.orders has failed", "fix it"),
    )
    assert [each for each in events if each is not error] == [
        (20, ["items", "orders"]),
        (30, ["items"]),
        (40, ["items"]),
    ]


def test_subscription_yields_the_error_of_a_table_at_once_and_continues(
    home: penstock.Home, writer: ChangeLogWriter
) -> None:
    publish(writer, 20)
    found = home.subscribe("shop", None, idle(40))
    publish_errors(writer, 30, "public.orders", chunks=[chunk(ITEMS, [inserted(30)])])
    error = next(found)
    assert isinstance(error, TableError)
    assert (error.table, error.lsn) == ("public.orders", 30)
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    others = [each for each in found if isinstance(each, penstock.Transaction)]
    assert [summary(each) for each in others] == [(30, ["items"]), (40, ["items"])]
    with pytest.raises(TableError, match=r"public\.orders has failed"):
        next(home.subscribe("shop", "orders", idle(9)))


def test_error_of_the_last_table_ends_the_tail(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders")
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    publish_errors(writer, 50, "public.items")
    for start, seen in (("earliest", [20, 40]), (Lsn(20), [40]), (Lsn(50), [])):
        errors: list[TableError] = []
        positions_seen: list[int] = []
        with pytest.raises(TableError, match="has failed") as caught:
            for transaction in home.tail("shop", start=start, failed=errors.append):
                positions_seen.append(int(transaction.lsn))
        assert positions_seen == seen
        assert {error.table for error in errors} | {caught.value.table} == {"public.items", "public.orders"}
        assert len(errors) == 1


def test_all_tables_fail_at_once(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders", "public.items")
    errors: list[TableError] = []
    with pytest.raises(TableError, match="orders has failed"):
        positions(home.tail("shop", start="earliest", failed=errors.append))
    assert [error.table for error in errors] == ["public.items"]


def test_shard_without_tables_does_not_affect_the_others(tmp_path: Path) -> None:
    logs = {shard: SqliteLog(tmp_path / f"{shard}.db") for shard in ("one", "two")}
    for log in logs.values():
        log.create(Lsn(10))
    logs_to_tail = [module.Tailed(log, frozenset(), Lsn(10), shard) for shard, log in logs.items()]
    errors: list[TableError] = []
    found = module.follow(logs_to_tail, lambda: False, errors.append)
    with closing(logs["one"].writer()) as one, closing(logs["two"].writer()) as two:
        for writer in (one, two):
            writer.define(ORDERS, Lsn(10))
        publish_errors(one, 20, "public.orders")
        two.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
        assert next(found).shard == "two"
        assert [error.message for error in errors] == ["on shard one, public.orders has failed"]
        publish_errors(two, 40, "public.orders")
        with pytest.raises(TableError, match=r"on shard two, public\.orders has failed"):
            next(found)
    assert len(errors) == 1


def test_error_of_a_named_table_ends_the_tail_despite_a_callback(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders")
    errors: list[TableError] = []
    found = home.tail("shop", ["public.orders", "public.items"], start="earliest", failed=errors.append)
    assert next(found).lsn == 20
    with pytest.raises(TableError, match="orders has failed"):
        next(found)
    assert errors == []


def test_table_that_failed_before_the_start_is_reported(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders")
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    errors: list[TableError] = []
    assert positions(home.tail("shop", start=Lsn(30), stop=idle(9), failed=errors.append)) == [40]
    assert [error.table for error in errors] == ["public.orders"]


def test_table_that_is_captured_again_is_tailed_again(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    publish_errors(writer, 30, "public.orders")
    errors: list[TableError] = []
    found = home.tail("shop", start="earliest", stop=idle(15), failed=errors.append)
    assert summary(next(found)) == (20, ["items", "orders"])
    writer.publish([chunk(ITEMS, [inserted(40)])], Lsn(40))
    assert summary(next(found)) == (40, ["items"])
    writer.publish([chunk(ITEMS, [inserted(50)])], Lsn(50))
    writer.define(ORDERS, generation=1)
    publish(writer, 60)
    assert [summary(transaction) for transaction in found] == [(50, ["items"]), (60, ["items", "orders"])]
    assert [error.message for error in errors] == ["public.orders has failed"]


def test_skipped_changes_of_a_table_that_is_captured_again_are_reported(
    home: penstock.Home, writer: ChangeLogWriter
) -> None:
    """The table did not fail, or its error was not read before it was captured again."""
    for lsn in (20, 30):
        publish(writer, lsn)
    errors: list[TableError] = []
    found = home.tail("shop", start=Lsn(10), stop=idle(15), failed=errors.append)
    assert summary(next(found)) == (20, ["items", "orders"])
    assert summary(next(found)) == (30, ["items", "orders"])
    publish(writer, 40)
    writer.define(ORDERS, generation=1)
    publish(writer, 50)
    assert [summary(transaction) for transaction in found] == [(40, ["items"]), (50, ["items", "orders"])]
    (error,) = errors
    assert "public.orders was captured again: changes after 0/1E and up to 0/28 are skipped" in error.message
    assert error.hint


def test_added_table_is_tailed_from_its_start(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    found = home.tail("shop", start="earliest", stop=idle(15))
    assert summary(next(found)) == (20, ["items", "orders"])
    publish(writer, 30)
    notes = replace(ORDERS, table=TableName("public", "others"))
    writer.define(notes, generation=1)
    writer.publish([chunk(ORDERS, [inserted(40)]), chunk(notes, [inserted(40)])], Lsn(40))
    assert [summary(transaction) for transaction in found] == [(30, ["items", "orders"]), (40, ["orders", "others"])]


def test_earliest_is_the_first_position_at_which_all_tables_are_complete(
    home: penstock.Home, writer: ChangeLogWriter
) -> None:
    publish(writer, 20)
    writer.define(ORDERS, generation=1)
    publish(writer, 30)
    assert positions(home.tail("shop", start="earliest", stop=idle(9))) == [30]
    assert positions(home.tail("shop", ["public.items"], start="earliest", stop=idle(9))) == [20, 30]


def test_publish_ends_the_wait(home: penstock.Home, writer: ChangeLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a poll interval of hours, a transaction is seen only because its publication ends the wait."""
    monkeypatch.setattr(module, "_POLL_SECONDS", 100 * PATIENCE)
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
