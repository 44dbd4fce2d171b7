"""`home.tail`: what it begins with, what it holds while it runs, how it ends."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted

import penstock
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLogReader, ChangeLogWriter
from penstock.control import tail as module
from penstock.errors import DefiniteError, HistoryGone, TableError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName
from penstock.positions import Lsn

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
    for arguments, said, remedy in (
        (("bank",), "no source bank", "Known are: shop"),
        (("shop", ["public.order"]), "no table public.order", "public.orders"),
        (("shop", [], "yesterday"), "'yesterday' is not a position", "earliest"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            home.tail(*arguments)
        assert remedy in caught.value.remedy
    with pytest.raises(DefiniteError, match="notes is not captured: it has no key") as failed:
        home.tail("shop", ["public.notes"])
    assert failed.value.remedy == "Add one."


def test_what_is_gone_is_refused(home: penstock.Home, writer: ChangeLogWriter) -> None:
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    writer.retain(datetime.fromtimestamp(AT / 1e6 + 0.00003, UTC))
    assert positions(home.tail("shop", start="earliest", stop=idle())) == [40]
    with pytest.raises(HistoryGone):
        next(home.tail("shop", start=Lsn(20)))


def test_it_holds_history_while_it_runs(
    home: penstock.Home, writer: ChangeLogWriter, reader: ChangeLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEASE_SECONDS", 0.6)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.1)
    for lsn in (20, 30, 40):
        publish(writer, lsn)
    found = home.tail("shop", start="earliest")
    assert next(found).lsn == 20
    time.sleep(0.8)  # whoever iterates may take longer than the lease
    (pin,) = reader.pins()
    assert pin.reader.startswith("tail-")
    assert pin.expires is not None
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


def test_earliest_is_where_all_tables_are_whole(home: penstock.Home, writer: ChangeLogWriter) -> None:
    publish(writer, 20)
    writer.define(ORDERS, generation=1)
    publish(writer, 30)
    assert positions(home.tail("shop", start="earliest", stop=idle(9))) == [30]
    assert positions(home.tail("shop", ["public.items"], start="earliest", stop=idle(9))) == [20, 30]


def test_it_follows_closely(home: penstock.Home, writer: ChangeLogWriter) -> None:
    published: dict[int, float] = {}
    seen: dict[int, float] = {}
    found = home.tail("shop", stop=lambda: 119 in seen)

    def follow() -> None:
        for transaction in found:
            seen[int(transaction.lsn)] = time.perf_counter()

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.2)
    for lsn in range(20, 120):
        publish(writer, lsn)
        published[lsn] = time.perf_counter()
        time.sleep(0.005)
    thread.join(30)
    assert list(seen) == list(published)
    lag = statistics.median(seen[lsn] - published[lsn] for lsn in published)
    print(f"published to yielded: p50 {lag * 1000:.1f} ms")
    assert lag < 0.05
